"""Collections of documents in SQL: what is in them, each function within the transaction that the caller opened."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from worker.errors import PagemillError
from worker.sql.tables import ChunkRow, CollectionRow, DocumentRow, SummaryRow, SummaryState

IDS_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection as it stands. Times are UTC."""

    id: int
    name: str
    key: str
    source_kind: str
    source: str
    model: str
    tokenizer_hash: str
    chunk_tokens: int
    overlap_tokens: int
    revision: int
    created_at: datetime
    indexed_at: datetime
    source_options: str | None = None  # JSON: see worker.rag.remembering


@dataclass(frozen=True, slots=True)
class DocumentRecord:
    """A document without its text. Times are UTC."""

    id: int
    source: str
    title: str
    format: str
    source_hash: str | None
    content_hash: str | None
    num_characters: int
    num_tokens: int
    problem: str | None
    changed_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """A chunk with what it is cited by."""

    id: int
    document_id: int
    source: str
    title: str
    position: int
    start: int
    text: str
    num_tokens: int
    overlap_characters: int
    overlap_tokens: int


@dataclass(frozen=True, slots=True)
class CollectionCounts:
    """How much is in a collection; deleted documents are counted apart."""

    documents: int
    deleted: int
    problems: int
    tokens: int
    chunks: int
    summaries_done: int  # of the documents as they are now
    summaries_pending: int
    summaries_failed: int


def find_collection(connection: Connection, name: str) -> Collection | None:
    """Return the collection of that name, or None."""
    rows = connection.execute(select(CollectionRow.__table__).where(CollectionRow.name == name)).mappings()
    return next((Collection(**row) for row in rows), None)


def existing_collection(connection: Connection, name: str) -> Collection:
    """Return the collection of that name. Raises PagemillError where there is none, naming those that there are."""
    collection = find_collection(connection, name)
    if collection is None:
        names = [found.name for found in find_collections(connection)]
        there = f"there are {', '.join(names[:20])}" if names else "there is none yet; pagemill rag index makes one"
        raise PagemillError(f"no collection {name!r} in the database; {there}")
    return collection


def find_collections(connection: Connection) -> tuple[Collection, ...]:
    """Return all collections by name."""
    rows = connection.execute(select(CollectionRow.__table__).order_by(CollectionRow.name)).mappings()
    return tuple(Collection(**row) for row in rows)


def add_collection(connection: Connection, columns: dict[str, Any]) -> int:
    """Write a new collection and return its id."""
    collection_id: int = connection.execute(
        insert(CollectionRow).values(columns).returning(CollectionRow.id)
    ).scalar_one()
    return collection_id


def change_collection(connection: Connection, collection_id: int, columns: dict[str, Any]) -> None:
    """Change columns of a collection."""
    connection.execute(update(CollectionRow).where(CollectionRow.id == collection_id).values(columns))


def raise_revision(connection: Connection, collection_id: int) -> None:
    """Say that a collection's chunks have changed."""
    change_collection(connection, collection_id, {"revision": CollectionRow.revision + 1})


def remove_collection(connection: Connection, collection_id: int) -> None:
    """Delete a collection with its documents, chunks and summaries. Its jobs and their results stay."""
    connection.execute(delete(CollectionRow).where(CollectionRow.id == collection_id))


def find_documents(connection: Connection, collection_id: int) -> tuple[DocumentRecord, ...]:
    """Return the documents of a collection, deleted ones too, by source."""
    columns = [getattr(DocumentRow, name) for name in DocumentRecord.__dataclass_fields__]
    rows = connection.execute(select(*columns).where(DocumentRow.collection_id == collection_id)).mappings()
    # Sorted here: the databases' own collations differ.
    return tuple(sorted((DocumentRecord(**row) for row in rows), key=lambda document: document.source))


def write_document(connection: Connection, document_id: int | None, columns: Mapping[str, Any]) -> int:
    """Write a new document, or columns of the one of that id; return its id."""
    if document_id is not None:
        connection.execute(update(DocumentRow).where(DocumentRow.id == document_id).values(columns))
        return document_id
    new_id: int = connection.execute(insert(DocumentRow).values(columns).returning(DocumentRow.id)).scalar_one()
    return new_id


def replace_chunks(connection: Connection, document_id: int, chunks: Sequence[Mapping[str, Any]]) -> None:
    """Put these in the place of a document's chunks."""
    connection.execute(delete(ChunkRow).where(ChunkRow.document_id == document_id))
    if chunks:
        connection.execute(insert(ChunkRow), [{"document_id": document_id, **chunk} for chunk in chunks])


def mark_deleted(connection: Connection, document_ids: Sequence[int], now: datetime) -> None:
    """Mark documents that their source has no more. Their chunks go, their summaries stay."""
    for ids in _pages(document_ids):
        missing = {"deleted_at": now, "problem": None, "source_hash": None}
        connection.execute(update(DocumentRow).where(DocumentRow.id.in_(ids)).values(missing))
        connection.execute(delete(ChunkRow).where(ChunkRow.document_id.in_(ids)))


def find_chunks(connection: Connection, document_ids: Sequence[int]) -> Iterator[ChunkRecord]:
    """Yield the chunks of documents, in the order of the documents' ids and of their positions."""
    for ids in _pages(document_ids):
        yield from _chunks(connection, ChunkRow.document_id.in_(ids))


def find_chunks_by_id(connection: Connection, chunk_ids: Sequence[int]) -> dict[int, ChunkRecord]:
    """Return chunks by their ids."""
    return {chunk.id: chunk for ids in _pages(chunk_ids) for chunk in _chunks(connection, ChunkRow.id.in_(ids))}


def count_collection(connection: Connection, collection_id: int) -> CollectionCounts:
    """Count what is in a collection."""
    of_collection = DocumentRow.collection_id == collection_id
    is_there = DocumentRow.deleted_at.is_(None)
    documents = select(
        func.count().filter(is_there),
        func.count().filter(DocumentRow.deleted_at.is_not(None)),
        func.count().filter(DocumentRow.problem.is_not(None)),
        func.coalesce(func.sum(DocumentRow.num_tokens).filter(is_there), 0),
    ).where(of_collection)
    chunks = select(func.count()).select_from(ChunkRow).join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
    current = (
        select(SummaryRow.state, func.count(func.distinct(SummaryRow.document_id)).label("number"))
        .join(DocumentRow, DocumentRow.id == SummaryRow.document_id)
        .where(of_collection, is_there, SummaryRow.content_hash == DocumentRow.content_hash)
        .group_by(SummaryRow.state)
    )
    states = {row.state: row.number for row in connection.execute(current)}
    num_documents, deleted, problems, tokens = connection.execute(documents).one()
    return CollectionCounts(
        documents=num_documents,
        deleted=deleted,
        problems=problems,
        tokens=int(tokens),
        chunks=connection.scalar(chunks.where(of_collection)) or 0,
        summaries_done=states.get(SummaryState.DONE, 0),
        summaries_pending=states.get(SummaryState.PENDING, 0),
        summaries_failed=states.get(SummaryState.FAILED, 0),
    )


def _chunks(connection: Connection, condition: Any) -> Iterator[ChunkRecord]:
    own = [getattr(ChunkRow, name) for name in ChunkRecord.__dataclass_fields__ if name not in ("source", "title")]
    statement = select(*own, DocumentRow.source, DocumentRow.title).join(
        DocumentRow, DocumentRow.id == ChunkRow.document_id
    )
    ordered = statement.where(condition).order_by(ChunkRow.document_id, ChunkRow.position)
    for row in connection.execute(ordered).mappings():
        yield ChunkRecord(**row)


def _pages(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    rising = sorted(set(ids))
    for start in range(0, len(rising), IDS_PER_STATEMENT):
        yield rising[start : start + IDS_PER_STATEMENT]
