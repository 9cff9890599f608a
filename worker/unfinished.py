"""The jobs that SQL has and that have not ended, page by page; and what becomes of those that the queue lost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, literal, select, text, tuple_, update

from worker.lookups import chunked
from worker.records import AttemptState, JobState
from worker.tables import UNFINISHED, AttemptRow, JobRow, WorkerRow

IS_UNFINISHED = text(f"jobs.{UNFINISHED}")  # word for word the index's condition, or the index is not used
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
    row = connection.execute(select(func.count(), func.max(JobRow.enqueued_at)).where(IS_UNFINISHED)).one()
    return UnfinishedJobs(*row)


def find_unfinished(
    connection: Connection, after: UnfinishedJob | None, until: datetime, limit: int
) -> tuple[UnfinishedJob, ...]:
    """Return the next `limit` jobs behind `after` in the order of submission, of those enqueued by `until`."""
    running = and_(
        AttemptRow.job_id == JobRow.id, AttemptRow.epoch == JobRow.epoch, AttemptRow.state == AttemptState.RUNNING
    )
    holder = and_(WorkerRow.name == AttemptRow.worker_name, WorkerRow.stopped_at.is_(None))
    own = [name for name in UnfinishedJob.__dataclass_fields__ if name not in ("job_id", "holder_seen_at")]
    columns = [JobRow.id, *(getattr(JobRow, name) for name in own), WorkerRow.last_heartbeat_at]
    statement = select(*columns).outerjoin(AttemptRow, running).outerjoin(WorkerRow, holder)
    statement = statement.where(IS_UNFINISHED, JobRow.enqueued_at <= until)
    if after is not None:
        place = tuple_(literal(after.enqueued_at, JobRow.enqueued_at.type), literal(after.job_id, JobRow.id.type))
        statement = statement.where(tuple_(JobRow.enqueued_at, JobRow.id) > place)
    statement = statement.order_by(JobRow.enqueued_at, JobRow.id).limit(limit)
    return tuple(UnfinishedJob(*row) for row in connection.execute(statement))


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
