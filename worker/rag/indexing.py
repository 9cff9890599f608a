"""Bringing a collection up to date with its source: only what is new or has changed is parsed, split and written.

Documents are written some dozens at a time: what is interrupted goes on about where it stopped. One that cannot be read
never harms the others: its row says why, and the text it had before stays.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine

from worker.errors import InvalidJob, PagemillError
from worker.jobs import IDENTIFIER
from worker.rag.model import RagModel
from worker.rag.reading import UnreadableDocument
from worker.rag.sources import Source, SourceItem, hash_of
from worker.rag.splitting import SplitRule, split_text
from worker.sql import collections
from worker.sql.collections import Collection, DocumentRecord
from worker.sql.database import reading, writing
from worker.sql.tables import utc_now

DOCUMENTS_AT_ONCE = 64  # in a transaction
CHARACTERS_AT_ONCE = 2_000_000  # likewise, so that large documents do not wait in memory
READER_VERSION = 1  # rises with a change to how files are parsed or split: everything is read anew then


class Change(StrEnum):
    """What indexing found of a document."""

    ADDED = "added"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    UNREADABLE = "unreadable"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Indexed:
    """One document that was looked at; `problem` is why an UNREADABLE one is that."""

    source: str
    change: Change
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    """What was found of a document, and what is to be written of it: nothing, columns, or chunks besides."""

    indexed: Indexed
    document_id: int | None = None  # None: it is new
    columns: Mapping[str, Any] = field(default_factory=dict)
    chunks: Sequence[Mapping[str, Any]] | None = None

    @property
    def num_characters(self) -> int:
        return sum(len(chunk["text"]) for chunk in self.chunks or ())


@dataclass(frozen=True, slots=True)
class Indexer:
    """Indexes sources into collections."""

    database: Engine
    model: RagModel
    rule: SplitRule
    clock: Callable[[], datetime] = field(default=utc_now)

    def run(self, name: str, source: Source) -> Iterator[Indexed]:
        """Yield each document when SQL has it as it is now; at the end, those that are gone.

        Raises PagemillError for a name that cannot be, a source that cannot be read or has no document, and a
        collection that has another source; ServiceUnavailable as `writing`.
        """
        collection = self._opened(name, source)
        with reading(self.database) as connection:
            known = {document.source: document for document in collections.find_documents(connection, collection.id)}
        seen = set()
        findings: list[_Finding] = []
        for item in source.items():
            seen.add(item.source)
            findings.append(self._look_at(collection, known.get(item.source), item, source.options))
            if _is_full(findings):
                yield from self._write(collection, findings)
                findings = []
        yield from self._write(collection, findings)
        if not seen:
            raise PagemillError(f"{source.kind}: {source.place} holds no documents; nothing was changed")
        gone = [document for document in known.values() if document.source not in seen and document.deleted_at is None]
        self._finish(collection, gone)
        for document in gone:
            yield Indexed(document.source, Change.DELETED)

    def _opened(self, name: str, source: Source) -> Collection:
        """Return the collection, made where it is not there; one that was split otherwise is to be split anew."""
        check_name(name)
        now = self.clock()
        settings = {
            "model": self.model.name,
            "tokenizer_hash": self.model.tokenizer_hash,
            "chunk_tokens": self.rule.chunk_tokens,
            "overlap_tokens": self.rule.overlap_tokens,
        }
        place = {
            "source_kind": source.kind.value,
            "source": source.place,
            "source_options": json.dumps(source.remembered),
        }
        with writing(self.database) as connection:
            found = collections.find_collection(connection, name)
            if found is None:
                times = {"created_at": now, "indexed_at": now, "revision": 0}
                collections.add_collection(connection, {"name": name, "key": uuid4().hex, **place, **settings, **times})
            elif found.source_kind != source.kind:
                raise PagemillError(
                    f"collection {name} was indexed from {found.source_kind}: {found.source}; give another name, or "
                    f"remove it first (pagemill rag rm {name})"
                )
            else:
                collections.change_collection(connection, found.id, {**place, **settings})
            opened = collections.find_collection(connection, name)
        assert opened is not None, "it was there or was made"
        return opened

    def _look_at(
        self, collection: Collection, known: DocumentRecord | None, item: SourceItem, options: str
    ) -> _Finding:
        source_hash = self._source_hash(item, options)
        if known is not None and source_hash is not None and source_hash == known.source_hash:
            # What could not be parsed the last time is the same now, and so is the reason.
            change = Change.UNCHANGED if known.problem is None else Change.UNREADABLE
            return _Finding(Indexed(item.source, change, known.problem))
        try:
            document = item.read()
        except UnreadableDocument as error:
            return self._unreadable(collection, known, item, source_hash, str(error))
        content_hash = hash_of(document.text.encode())
        chunks = split_text(document.text, self.rule, self.model.counter.count)
        is_changed = known is None or known.content_hash != content_hash or known.deleted_at is not None
        columns = {
            "collection_id": collection.id,
            "source": item.source,
            "format": item.format.value,
            "title": document.title,
            "source_hash": source_hash,
            "content_hash": content_hash,
            "num_characters": len(document.text),
            "num_tokens": sum(chunk.num_tokens - chunk.overlap_tokens for chunk in chunks),
            "problem": None,
            "deleted_at": None,
            **({"changed_at": self.clock()} if is_changed else {}),
        }
        is_new = known is None or known.content_hash is None
        change = Change.ADDED if is_new else Change.CHANGED if is_changed else Change.UNCHANGED
        rows = [{"position": position, **asdict(chunk)} for position, chunk in enumerate(chunks)]
        return _Finding(Indexed(item.source, change), None if known is None else known.id, columns, rows)

    def _source_hash(self, item: SourceItem, options: str) -> str | None:
        """Return what tells whether a document's chunks would be the same again."""
        if item.source_hash is None:
            return None
        rule = f"{self.rule.chunk_tokens} {self.rule.overlap_tokens} {self.model.tokenizer_hash}"
        return hash_of(f"{READER_VERSION} {options} {rule} {item.format} {item.source_hash}".encode())

    def _unreadable(
        self,
        collection: Collection,
        known: DocumentRecord | None,
        item: SourceItem,
        source_hash: str | None,
        problem: str,
    ) -> _Finding:
        indexed = Indexed(item.source, Change.UNREADABLE, problem)
        columns: dict[str, Any] = {"problem": problem, "source_hash": source_hash, "deleted_at": None}
        if known is None or known.deleted_at is not None:  # there is no text of it
            columns |= {"content_hash": None, "num_characters": 0, "num_tokens": 0}
        if known is not None:
            return _Finding(indexed, known.id, columns)
        name = {"collection_id": collection.id, "source": item.source, "format": item.format.value}
        return _Finding(indexed, None, {**name, "title": item.source, "changed_at": self.clock(), **columns})

    def _write(self, collection: Collection, findings: Sequence[_Finding]) -> Iterator[Indexed]:
        """Write findings in one transaction, then yield them."""
        changes = [finding for finding in findings if finding.columns]
        if changes:
            with writing(self.database) as connection:
                for finding in changes:
                    document_id = collections.write_document(connection, finding.document_id, finding.columns)
                    if finding.chunks is not None:
                        collections.replace_chunks(connection, document_id, finding.chunks)
                if any(finding.chunks is not None for finding in changes):
                    collections.raise_revision(connection, collection.id)
        for finding in findings:
            yield finding.indexed

    def _finish(self, collection: Collection, gone: list[DocumentRecord]) -> None:
        now = self.clock()
        with writing(self.database) as connection:
            if gone:
                collections.mark_deleted(connection, [document.id for document in gone], now)
                collections.raise_revision(connection, collection.id)
            collections.change_collection(connection, collection.id, {"indexed_at": now})


def _is_full(findings: Sequence[_Finding]) -> bool:
    size = sum(finding.num_characters for finding in findings)
    return len(findings) >= DOCUMENTS_AT_ONCE or size >= CHARACTERS_AT_ONCE


def check_name(name: str) -> None:
    """Raise InvalidJob for what cannot be the name of a collection."""
    if re.fullmatch(IDENTIFIER, name) is None:
        raise InvalidJob("collection", f"{name!r} is no name: up to 128 letters, digits, '.', '_', ':' and '-'")
