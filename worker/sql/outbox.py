"""The outbox in SQL: committed rows become jobs, in transactions that any number of relays may run at once."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from worker.errors import InvalidJob, PagemillError
from worker.jobs import parse_job
from worker.queue.submission import JOB_ID, JOB_ID_RULE, MICROSECOND, QueueRecord, valid_payload
from worker.records import DeadRecord
from worker.settings_types import QUEUE_PATTERN, QUEUE_RULE
from worker.sql.job_changes import SubmittedJob, add_dead, add_queued
from worker.sql.lookups import chunked
from worker.sql.tables import JobRow, OutboxRow

REDO_AFTER = timedelta(seconds=10)  # what a relay recorded and did not clear by then, another one queues

INVALID_JOB = "invalid_job"  # the error code of a row that is no job


@dataclass(frozen=True, slots=True)
class OutboxJob:
    """A job that is in `jobs` and in the outbox; Redis is to have it next."""

    row_id: int
    queue: str
    record: QueueRecord


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """What one transaction took out of the outbox."""

    jobs: tuple[OutboxJob, ...]
    dead: tuple[str, ...]  # ids of jobs that were dead-lettered

    @property
    def is_empty(self) -> bool:
        return not self.jobs and not self.dead


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What is in the outbox. `oldest_at` is when its oldest row was written, UTC."""

    num_waiting: int
    num_recorded: int  # Redis is still to get them
    oldest_at: datetime | None


def has_rows(connection: Connection, now: datetime) -> bool:
    """Tell whether there is anything to take."""
    return connection.execute(select(OutboxRow.id).where(_is_open(now)).limit(1)).first() is not None


def take(connection: Connection, limit: int, now: datetime) -> OutboxPage:
    """Write the jobs of the next `limit` rows, at most 500, as queued, and dead-letter those that are none: both
    exactly once.

    Rows that another relay has locked, or has recorded and is about to queue, are left to it.
    """
    rows = connection.execute(
        select(OutboxRow.__table__)
        .where(_is_open(now))
        .order_by(OutboxRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    jobs: list[tuple[int, SubmittedJob]] = []
    bad: list[tuple[Row[Any], PagemillError]] = []
    for place, row in enumerate(rows):
        try:
            # A microsecond apart, as with all submission: what is rebuilt in this order comes back in it.
            jobs.append((row.id, _submitted(row, now + place * MICROSECOND)))
        except PagemillError as error:
            bad.append((row, error))
    dead = _add_dead(connection, bad, now)
    add_queued(connection, [submitted for _, submitted in jobs])
    clear(connection, [row.id for row, _ in bad])
    taken = [row_id for row_id, _ in jobs]
    connection.execute(update(OutboxRow).where(OutboxRow.id.in_(taken)).values(recorded_at=now))
    return OutboxPage(
        tuple(OutboxJob(row_id, submitted.queue, _queue_record(submitted)) for row_id, submitted in jobs), dead
    )


def clear(connection: Connection, row_ids: Iterable[int]) -> None:
    """Delete rows whose jobs Redis has."""
    connection.execute(delete(OutboxRow).where(OutboxRow.id.in_(list(row_ids))))


def count(connection: Connection) -> OutboxStatus:
    """Count the rows."""
    numbers = select(func.count(), func.count(OutboxRow.recorded_at), func.min(OutboxRow.created_at))
    total, num_recorded, oldest_at = connection.execute(numbers).one()
    return OutboxStatus(total - num_recorded, num_recorded, oldest_at)


def _is_open(now: datetime) -> ColumnElement[bool]:
    return or_(OutboxRow.recorded_at.is_(None), OutboxRow.recorded_at < now - REDO_AFTER)


def _submitted(row: Row[Any], enqueued_at: datetime) -> SubmittedJob:
    """Return the job of a row. Raises PagemillError for one that is none."""
    if not JOB_ID.fullmatch(row.job_id):
        raise InvalidJob("job_id", f"must be {JOB_ID_RULE}")
    if not QUEUE_PATTERN.fullmatch(row.queue):
        raise InvalidJob("queue", f"must be {QUEUE_RULE}")
    try:
        given = json.loads(row.payload)
    except (ValueError, RecursionError) as error:
        raise InvalidJob("payload", f"is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidJob("payload", f"must be a JSON object, not {type(given).__name__}")
    payload = valid_payload(given)
    return SubmittedJob(row.job_id, row.queue, parse_job(payload), json.dumps(payload), enqueued_at)


def _add_dead(connection: Connection, bad: Sequence[tuple[Row[Any], PagemillError]], now: datetime) -> tuple[str, ...]:
    """Dead-letter rows; one under an id that cannot be, or that another job has, gets one of its own."""
    known: set[str] = set()
    for chunk in chunked({row.job_id for row, _ in bad}):
        known.update(connection.scalars(select(JobRow.id).where(JobRow.id.in_(chunk))))
    records = []
    for row, error in bad:
        is_free = row.job_id not in known and JOB_ID.fullmatch(row.job_id) is not None
        job_id = row.job_id if is_free else uuid4().hex
        known.add(job_id)
        records.append(DeadRecord(job_id, row.queue, INVALID_JOB, f"from the outbox: {error}", row.payload, now))
    add_dead(connection, records, now)
    return tuple(record.job_id for record in records)


def _queue_record(submitted: SubmittedJob) -> QueueRecord:
    payload = json.loads(submitted.payload_json)
    return QueueRecord(submitted.job_id, payload, submitted.payload_json, submitted.enqueued_at)
