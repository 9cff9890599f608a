"""Dead-lettered jobs in SQL: finding them, deleting them."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, select

from worker.records import JobState
from worker.sql.lookups import chunked
from worker.sql.tables import JobRow


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead-lettered job. Times are UTC."""

    id: str
    queue: str
    error_code: str | None
    error_message: str | None
    enqueued_at: datetime | None
    dead_at: datetime | None
    payload: str  # the job's JSON, or a raw record's


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead-lettered jobs: all that fit what is given."""

    queue: str | None = None
    since: datetime | None = None  # dead-lettered then or later
    before: datetime | None = None


def find_dead(connection: Connection, wanted: DeadFilter) -> tuple[DeadJob, ...]:
    """Return the jobs that fit, the latest to be dead-lettered first."""
    statement = select(JobRow).where(JobRow.state == JobState.DEAD)
    if wanted.queue is not None:
        statement = statement.where(JobRow.queue == wanted.queue)
    if wanted.since is not None:
        statement = statement.where(JobRow.ended_at >= wanted.since)
    if wanted.before is not None:
        statement = statement.where(JobRow.ended_at < wanted.before)
    columns = (JobRow.id, JobRow.queue, JobRow.error_code, JobRow.error_message, JobRow.enqueued_at, JobRow.ended_at)
    rows = connection.execute(
        statement.with_only_columns(*columns, JobRow.payload).order_by(JobRow.ended_at.desc(), JobRow.id)
    )
    return tuple(DeadJob(*row) for row in rows)


def delete_dead(connection: Connection, job_ids: Iterable[str]) -> frozenset[str]:
    """Delete the rows of those that are dead, their attempts with them. Return their ids."""
    deleted: set[str] = set()
    for chunk in chunked(job_ids):
        is_dead = JobRow.id.in_(chunk) & (JobRow.state == JobState.DEAD)
        deleted.update(connection.scalars(delete(JobRow).where(is_dead).returning(JobRow.id)))
    return frozenset(deleted)
