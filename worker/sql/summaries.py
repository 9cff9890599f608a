"""Summaries in SQL: what is to be made, what is under way, and taking over what their jobs have put out.

A summary owns its text: the job that made it may be purged.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVarTuple

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, insert, select, update

from worker.records import TERMINAL_STATES, JobState
from worker.sql.database import upserting
from worker.sql.tables import (
    ChunkRow,
    DocumentRow,
    JobRow,
    ResultRow,
    SummaryJobRow,
    SummaryRow,
    SummaryState,
)

COLLECTED_AT_ONCE = 500
DOCUMENTS_PER_STATEMENT = 500
Columns = TypeVarTuple("Columns")

EMPTY_OUTPUT = "empty_output: the model's output is empty"


@dataclass(frozen=True, slots=True)
class Version:
    """What a summary is made with, besides the document."""

    prompt_hash: str
    model_hash: str


@dataclass(frozen=True, slots=True)
class DocumentToSummarise:
    """A document as it is now, and its summary of one version, if there is one."""

    document_id: int
    source: str
    title: str
    content_hash: str
    chunk_tokens: tuple[int, ...]  # of each of its chunks, what it repeats left out
    state: SummaryState | None
    attempt_count: int
    batch_id: str | None


@dataclass(frozen=True, slots=True)
class NewSummary:
    """A summary that is to be made, and the jobs that make it: (id, level, position)."""

    columns: Mapping[str, Any]
    jobs: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class SummaryEnd:
    """How a summary ends."""

    summary_id: int
    state: SummaryState
    text: str | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """What was taken over: how many summaries are done and failed, and jobs that are of no use to anybody now."""

    done: int = 0
    failed: int = 0
    abandoned: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.done + self.failed


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A document and its latest summary. `is_current` tells whether that is of the text as it is now."""

    document_id: int
    source: str
    title: str
    deleted_at: datetime | None
    is_current: bool
    state: SummaryState
    text: str | None
    model: str
    prompt: str
    attempt_count: int
    batch_id: str
    job_id: str
    num_jobs: int
    completion_tokens: int | None
    finish_reason: str | None
    error_message: str | None
    created_at: datetime
    ended_at: datetime | None


def find_to_summarise(connection: Connection, collection_id: int, version: Version) -> list[DocumentToSummarise]:
    """Return the documents of a collection that have a text, each with its summary of this version."""
    lengths: dict[int, list[int]] = {}
    own_tokens = ChunkRow.num_tokens - ChunkRow.overlap_tokens
    chunks = select(ChunkRow.document_id, own_tokens).join(DocumentRow, DocumentRow.id == ChunkRow.document_id)
    chunks = chunks.where(DocumentRow.collection_id == collection_id)
    for document_id, tokens in connection.execute(chunks.order_by(ChunkRow.document_id, ChunkRow.position)):
        lengths.setdefault(document_id, []).append(tokens)
    same_version = and_(
        SummaryRow.document_id == DocumentRow.id,
        SummaryRow.content_hash == DocumentRow.content_hash,
        SummaryRow.prompt_hash == version.prompt_hash,
        SummaryRow.model_hash == version.model_hash,
    )
    columns = (DocumentRow.id, DocumentRow.source, DocumentRow.title, DocumentRow.content_hash)
    summary = (SummaryRow.state, SummaryRow.attempt_count, SummaryRow.batch_id)
    documents = select(*columns, *summary).outerjoin_from(DocumentRow, SummaryRow, same_version)
    documents = documents.where(DocumentRow.collection_id == collection_id, DocumentRow.deleted_at.is_(None))
    return [
        DocumentToSummarise(
            document_id=row.id,
            source=row.source,
            title=row.title,
            content_hash=row.content_hash,
            chunk_tokens=tuple(lengths[row.id]),
            state=row.state,
            attempt_count=row.attempt_count or 0,
            batch_id=row.batch_id,
        )
        for row in connection.execute(documents)
        if row.id in lengths
    ]


def add_summaries(connection: Connection, summaries: Sequence[NewSummary]) -> None:
    """Write summaries as pending, in the place of failed ones of the same versions; others stay as they are."""
    key = ("document_id", "content_hash", "prompt_hash", "model_hash")
    statement = upserting(connection, SummaryRow)
    excluded = statement.excluded
    changed = ("state", "attempt_count", "batch_id", "job_id", "num_jobs", "created_at")
    cleared = ("text", "error_message", "finish_reason", "completion_tokens", "ended_at")
    written = statement.on_conflict_do_update(
        index_elements=[getattr(SummaryRow, name) for name in key],
        set_={name: excluded[name] for name in (*changed, *cleared)},
        where=and_(SummaryRow.state == SummaryState.FAILED, SummaryRow.attempt_count < excluded.attempt_count),
    ).returning(SummaryRow.id)
    for summary in summaries:
        summary_id = connection.scalar(written, dict(summary.columns))
        if summary_id is None:
            continue  # somebody else is making it
        connection.execute(delete(SummaryJobRow).where(SummaryJobRow.summary_id == summary_id))
        rows = [
            {"job_id": job_id, "summary_id": summary_id, "level": level, "position": position}
            for job_id, level, position in summary.jobs
        ]
        connection.execute(insert(SummaryJobRow), rows)


def find_ends(connection: Connection) -> list[SummaryEnd]:
    """Return what becomes of pending summaries whose jobs have ended; some `COLLECTED_AT_ONCE` in a call."""
    ends = {end.summary_id: end for end in (*_broken(connection), *_ended(connection))}
    return [ends[summary_id] for summary_id in sorted(ends)]


def write_ends(connection: Connection, ends: Sequence[SummaryEnd], now: datetime) -> Collected:
    """End summaries that are pending still. Any number of processes may do so at once: a summary ends once."""
    names = ("state", "text", "completion_tokens", "finish_reason", "error_message")
    pending = and_(SummaryRow.id == bindparam("of_summary"), SummaryRow.state == SummaryState.PENDING)
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    connection.execute(
        update(SummaryRow).where(pending).values(**values, ended_at=now),
        [{"of_summary": end.summary_id, **{f"new_{name}": getattr(end, name) for name in names}} for end in ends],
    )
    failed = [end.summary_id for end in ends if end.state is SummaryState.FAILED]
    return Collected(len(ends) - len(failed), len(failed), tuple(_unended_jobs(connection, failed)))


def _ended(connection: Connection) -> Iterator[SummaryEnd]:
    """Yield what becomes of summaries whose last job has ended."""
    results = (ResultRow.text, ResultRow.completion_tokens, ResultRow.finish_reason)
    columns = (SummaryRow.id, JobRow.state, JobRow.error_code, JobRow.error_message, *results)
    jobs = select(*columns).join(JobRow, JobRow.id == SummaryRow.job_id)
    jobs = jobs.outerjoin(ResultRow, ResultRow.job_id == SummaryRow.job_id)
    for row in connection.execute(_of_pending(jobs).where(JobRow.state.in_(TERMINAL_STATES))):
        text = row.text.strip() if row.state is JobState.DONE and row.text is not None else ""
        if text:
            yield SummaryEnd(row.id, SummaryState.DONE, text, row.completion_tokens, row.finish_reason)
        else:
            yield SummaryEnd(
                row.id, SummaryState.FAILED, error_message=_reason(row.state, row.error_code, row.error_message)
            )


def _broken(connection: Connection) -> Iterator[SummaryEnd]:
    """Yield what becomes of summaries with a job that ended in a way that RQ tells no dependent job about."""
    columns = (SummaryRow.id, JobRow.id.label("job_id"), JobRow.state, JobRow.error_code, JobRow.error_message)
    jobs = select(*columns).join(SummaryJobRow, SummaryJobRow.summary_id == SummaryRow.id)
    jobs = _of_pending(jobs.join(JobRow, JobRow.id == SummaryJobRow.job_id))
    for row in connection.execute(jobs.where(JobRow.state.in_((JobState.CANCELLED, JobState.DEAD)))):
        reason = _reason(row.state, row.error_code, row.error_message)
        yield SummaryEnd(row.id, SummaryState.FAILED, error_message=f"job {row.job_id}: {reason}")


def _of_pending(statement: Select[*Columns]) -> Select[*Columns]:
    return statement.where(SummaryRow.state == SummaryState.PENDING).order_by(SummaryRow.id).limit(COLLECTED_AT_ONCE)


def _reason(state: JobState, code: str | None, message: str | None) -> str:
    if state is JobState.DONE:
        return EMPTY_OUTPUT
    return f"{code}: {message}" if code else f"the job was {state.value}"


def _unended_jobs(connection: Connection, summary_ids: Sequence[int]) -> Iterable[str]:
    for ids in _pages(summary_ids):
        jobs = select(JobRow.id).join(SummaryJobRow, SummaryJobRow.job_id == JobRow.id)
        yield from connection.scalars(
            jobs.where(SummaryJobRow.summary_id.in_(ids), JobRow.state.not_in(TERMINAL_STATES))
        )


def count_states(connection: Connection, collection_id: int, version: Version) -> Mapping[SummaryState, int]:
    """Count the summaries of a version, of the documents as they are now, by state."""
    counts = (
        select(SummaryRow.state, func.count().label("number"))
        .join(DocumentRow, DocumentRow.id == SummaryRow.document_id)
        .where(
            DocumentRow.collection_id == collection_id,
            DocumentRow.deleted_at.is_(None),
            SummaryRow.content_hash == DocumentRow.content_hash,
            SummaryRow.prompt_hash == version.prompt_hash,
            SummaryRow.model_hash == version.model_hash,
        )
        .group_by(SummaryRow.state)
    )
    return {row.state: row.number for row in connection.execute(counts)}


def known_jobs(connection: Connection, job_ids: Collection[str]) -> frozenset[str]:
    """Return those of the jobs that SQL has."""
    ids = sorted(job_ids)
    pages = (ids[start : start + DOCUMENTS_PER_STATEMENT] for start in range(0, len(ids), DOCUMENTS_PER_STATEMENT))
    return frozenset(
        job_id for page in pages for job_id in connection.scalars(select(JobRow.id).where(JobRow.id.in_(page)))
    )


def find_summaries(connection: Connection, collection_id: int) -> Iterator[SummaryRecord]:
    """Yield the latest summary of each document of a collection, one that is done before any other, by source."""
    summary_names = [name for name in SummaryRecord.__dataclass_fields__ if hasattr(SummaryRow, name)]
    columns = [getattr(SummaryRow, name) for name in summary_names]
    is_current = (SummaryRow.content_hash == DocumentRow.content_hash).label("is_current")
    statement = (
        select(*columns, DocumentRow.source, DocumentRow.title, DocumentRow.deleted_at, is_current)
        .join(DocumentRow, DocumentRow.id == SummaryRow.document_id)
        .where(DocumentRow.collection_id == collection_id)
    )
    best: dict[int, SummaryRecord] = {}
    for row in connection.execute(statement).mappings():
        record = SummaryRecord(**{**row, "is_current": bool(row["is_current"])})
        known = best.get(record.document_id)
        if known is None or _rank(record) > _rank(known):
            best[record.document_id] = record
    yield from sorted(best.values(), key=lambda record: record.source)


def _rank(record: SummaryRecord) -> tuple[bool, datetime]:
    return record.state is SummaryState.DONE, record.ended_at or record.created_at


def _pages(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), DOCUMENTS_PER_STATEMENT):
        yield ids[start : start + DOCUMENTS_PER_STATEMENT]
