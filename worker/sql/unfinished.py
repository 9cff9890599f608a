"""The jobs that SQL has and that have not ended, page by page; and what becomes of those that the queue lost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select, text, tuple_, update

from worker.records import AttemptState, JobState
from worker.sql.lookups import chunked
from worker.sql.tables import UNFINISHED, UNFINISHED_INDEX, AttemptRow, JobRow, WorkerRow

PAGE_COLUMNS = (
    *("id", "queue", "state", "epoch", "retry_count", "payload"),
    *("enqueued_at", "deadline_at", "retry_at"),
)
BEHIND = "AND (enqueued_at, id) > (:at, :id)"
DEADLINE_EXCEEDED = "deadline_exceeded"
LOST_BY_QUEUE = "queue_lost"  # the error code of an attempt whose job the queue lost, with the worker that ran it


@dataclass(frozen=True, slots=True)
class UnfinishedJob:
    """A job that waits or runs. Times are UTC; `holder_seen_at` is when the worker that runs it was last alive, None
    where no attempt is running or its worker has stopped."""

    job_id: str
    queue: str
    state: JobState
    epoch: int
    retry_count: int
    payload: str
    enqueued_at: datetime
    deadline_at: datetime | None
    retry_at: datetime | None
    holder_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnfinishedJobs:
    """How many there are, and when the last of them was enqueued."""

    number: int
    last_enqueued_at: datetime | None


def count_unfinished(connection: Connection) -> UnfinishedJobs:
    """Count the jobs that have not ended."""
    row = connection.execute(select(func.count(), func.max(JobRow.enqueued_at)).where(text(UNFINISHED))).one()
    return UnfinishedJobs(*row)


def find_unfinished(
    connection: Connection, after: UnfinishedJob | None, until: datetime, limit: int
) -> tuple[UnfinishedJob, ...]:
    """Return the next `limit` jobs behind `after` in the order of submission, of those enqueued by `until`."""
    # Along the index, whatever the planner knows of the table: sorting what is left for each page would be quadratic.
    is_sqlite = connection.dialect.name == "sqlite"
    if not is_sqlite:
        connection.execute(text("SET LOCAL enable_sort = off"))
    page = text(
        f"SELECT {', '.join(PAGE_COLUMNS)} FROM jobs {f'INDEXED BY {UNFINISHED_INDEX}' if is_sqlite else ''} "
        f"WHERE {UNFINISHED} AND enqueued_at <= :until {'' if after is None else BEHIND} "
        "ORDER BY enqueued_at, id LIMIT :limit"
    )
    values = [bindparam("until", until, JobRow.enqueued_at.type), bindparam("limit", limit)]
    if after is not None:
        values += [bindparam("at", after.enqueued_at, JobRow.enqueued_at.type), bindparam("id", after.job_id)]
    typed = page.bindparams(*values).columns(*(JobRow.__table__.c[name] for name in PAGE_COLUMNS))
    rows = connection.execute(typed).all()
    seen_at = _holders_seen_at(connection, [row.id for row in rows if row.state is JobState.RUNNING])
    return tuple(UnfinishedJob(*(*row, seen_at.get(row.id))) for row in rows)


def _holders_seen_at(connection: Connection, job_ids: Sequence[str]) -> dict[str, datetime]:
    """Return when the workers that run the jobs were last seen, without those that have stopped."""
    seen_at: dict[str, datetime] = {}
    for chunk in chunked(job_ids):
        running = and_(AttemptRow.job_id.in_(chunk), AttemptRow.state == AttemptState.RUNNING)
        statement = select(AttemptRow.job_id, WorkerRow.last_heartbeat_at).where(running)
        statement = statement.join(WorkerRow, WorkerRow.name == AttemptRow.worker_name)
        rows = connection.execute(statement.where(WorkerRow.stopped_at.is_(None)))
        seen_at.update((row.job_id, row.last_heartbeat_at) for row in rows)
    return seen_at


def requeue_lost(connection: Connection, jobs: Iterable[UnfinishedJob], now: datetime) -> frozenset[str]:
    """Put jobs that ran on workers that are gone back to queued. Return the ids of those that had not gone on since."""
    return _move_on(connection, jobs, now, {"state": JobState.QUEUED})


def expire_lost(connection: Connection, jobs: Iterable[UnfinishedJob], now: datetime) -> frozenset[str]:
    """End jobs whose deadline has passed as failed. Return the ids of those that had not gone on since."""
    message = "its deadline passed before the queue, which had lost it, could be rebuilt"
    ending = {"state": JobState.FAILED, "ended_at": now, "error_code": DEADLINE_EXCEEDED, "error_message": message}
    return _move_on(connection, jobs, now, {**ending, "retry_at": None})


def cancel_lost(connection: Connection, jobs: Iterable[UnfinishedJob], now: datetime) -> frozenset[str]:
    """End jobs that Redis has as cancelled. Return the ids of those that had not gone on since."""
    return _move_on(connection, jobs, now, {"state": JobState.CANCELLED, "ended_at": now, "retry_at": None})


def _move_on(
    connection: Connection, jobs: Iterable[UnfinishedJob], now: datetime, change: Mapping[str, Any]
) -> frozenset[str]:
    """Change jobs that are as they were read, and lose their running attempts."""
    by_id = {job.job_id: job for job in jobs}
    moved: set[str] = set()
    for chunk in chunked(by_id):
        moved.update(
            connection.scalars(update(JobRow).where(_unchanged(by_id, chunk)).values(change).returning(JobRow.id))
        )
    for chunk in chunked(moved):
        running = AttemptRow.job_id.in_(chunk) & (AttemptRow.state == AttemptState.RUNNING)
        lost = {
            "state": AttemptState.LOST,
            "ended_at": now,
            "error_code": LOST_BY_QUEUE,
            "error_message": "the queue lost the job, and the worker that ran it is gone",
        }
        connection.execute(update(AttemptRow).where(running).values(lost))
    return frozenset(moved)


def _unchanged(by_id: Mapping[str, UnfinishedJob], job_ids: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that a job among `job_ids` has neither ended nor been claimed since it was read."""
    as_read = [(job_id, by_id[job_id].epoch, by_id[job_id].state) for job_id in job_ids]
    return and_(JobRow.id.in_(job_ids), tuple_(JobRow.id, JobRow.epoch, JobRow.state).in_(as_read))
