"""What happens to a job outside an attempt: dead-lettered, cancelled while it waits, sent round again.

Rows are inserted in the order of their ids, batches first, so that two workers never wait for each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, or_, select, update

from worker.jobs import PromptJob
from worker.records import AttemptState, DeadRecord, JobState
from worker.sql.database import upserting
from worker.sql.lookups import chunked
from worker.sql.tables import AttemptRow, BatchRow, JobRow, JobStatsRow, ResultRow, storable

# SQLAlchemy takes no IN in a statement that inserts many rows.
HAS_NOT_ENDED = or_(JobRow.state == JobState.QUEUED, JobRow.state == JobState.RUNNING)
RETRIABLE_STATES = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.DEAD})


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A prompt job as its producer enqueued it. `enqueued_at` is UTC."""

    job_id: str
    queue: str
    job: PromptJob
    payload_json: str
    enqueued_at: datetime


def submitted_columns(submitted: SubmittedJob) -> dict[str, Any]:
    """Return the columns of a job's row that its producer settled."""
    return {
        "id": submitted.job_id,
        "queue": submitted.queue,
        "tenant": submitted.job.tenant,
        "model": submitted.job.model,
        "batch_id": submitted.job.batch_id,
        "custom_id": submitted.job.custom_id,
        "payload": submitted.payload_json,
        "enqueued_at": submitted.enqueued_at,
        "deadline_at": submitted.job.deadline,
    }


def add_batches(connection: Connection, jobs: Iterable[SubmittedJob]) -> None:
    """Write the batches of `jobs` that SQL lacks, and the size of one that had none."""
    batches: dict[str, dict[str, Any]] = {}
    for submitted in sorted(jobs, key=lambda submitted: submitted.enqueued_at):
        batch_id, size = submitted.job.batch_id, submitted.job.batch_size
        if batch_id is not None:
            row = batches.setdefault(batch_id, {"id": batch_id, "size": None, "created_at": submitted.enqueued_at})
            row["size"] = row["size"] or size
    # A look first: almost always the batch is there, and workers that share it must not queue up for its row.
    for chunk in chunked(batches):
        for known in connection.execute(select(BatchRow.id, BatchRow.size).where(BatchRow.id.in_(chunk))):
            if known.size is not None or batches[known.id]["size"] is None:
                del batches[known.id]
    if batches:
        statement = upserting(connection, BatchRow)
        announced = func.coalesce(BatchRow.size, statement.excluded.size)
        statement = statement.on_conflict_do_update(index_elements=[BatchRow.id], set_={"size": announced})
        connection.execute(statement, [batches[batch_id] for batch_id in sorted(batches)])


def add_queued(connection: Connection, jobs: Sequence[SubmittedJob]) -> None:
    """Write each job as queued, with its batch; one that is there already stays as it is."""
    by_id = {submitted.job_id: submitted for submitted in jobs}
    if by_id:
        add_batches(connection, by_id.values())
        waiting = {"state": JobState.QUEUED, "epoch": 0, "attempt_count": 0}
        statement = upserting(connection, JobRow).on_conflict_do_nothing(index_elements=[JobRow.id])
        connection.execute(statement, [{**submitted_columns(by_id[job_id]), **waiting} for job_id in sorted(by_id)])


def add_dead(connection: Connection, records: Sequence[DeadRecord], now: datetime) -> None:
    """Dead-letter each record at `now`. A job that SQL knows keeps its payload, and its state if that is terminal."""
    by_id = {storable(record.job_id): record for record in records}
    if not by_id:
        return
    statement = upserting(connection, JobRow)
    replaced = ("queue", "state", "error_code", "error_message", "diagnosis", "ended_at")
    statement = statement.on_conflict_do_update(
        index_elements=[JobRow.id],
        set_={name: statement.excluded[name] for name in replaced},
        where=HAS_NOT_ENDED,
    )
    connection.execute(statement, [_dead_columns(by_id[job_id], now) for job_id in sorted(by_id)])
    for chunk in chunked(by_id):
        dead = select(JobRow.id).where(JobRow.id.in_(chunk), JobRow.state == JobState.DEAD)
        running = (AttemptRow.state == AttemptState.RUNNING) & AttemptRow.job_id.in_(dead)
        ending = {"state": AttemptState.LOST, "ended_at": now, "error_code": "dead_lettered"}
        connection.execute(update(AttemptRow).where(running).values(ending))


def add_cancelled(connection: Connection, jobs: Sequence[SubmittedJob], now: datetime) -> frozenset[str]:
    """Cancel each job at `now` unless it runs or has ended. Return the ids of those that are cancelled."""
    by_id = {submitted.job_id: submitted for submitted in jobs}
    if not by_id:
        return frozenset()
    add_batches(connection, by_id.values())
    statement = upserting(connection, JobRow)
    statement = statement.on_conflict_do_update(
        index_elements=[JobRow.id],
        set_={"state": statement.excluded.state, "ended_at": statement.excluded.ended_at, "retry_at": None},
        where=JobRow.state == JobState.QUEUED,
    )
    ending = {"state": JobState.CANCELLED, "epoch": 0, "attempt_count": 0, "ended_at": now}
    connection.execute(statement, [{**submitted_columns(by_id[job_id]), **ending} for job_id in sorted(by_id)])
    cancelled: set[str] = set()
    for chunk in chunked(by_id):
        is_cancelled = JobRow.id.in_(chunk) & (JobRow.state == JobState.CANCELLED)
        cancelled.update(connection.scalars(select(JobRow.id).where(is_cancelled)))
    return frozenset(cancelled)


def cancel_queued(connection: Connection, job_ids: Iterable[str], now: datetime) -> frozenset[str]:
    """Cancel at `now` each job that SQL has as queued, those in a back-off included. Return their ids."""
    cancelled: set[str] = set()
    ending = {"state": JobState.CANCELLED, "ended_at": now, "retry_at": None}
    for chunk in chunked(job_ids):
        is_queued = JobRow.id.in_(chunk) & (JobRow.state == JobState.QUEUED)
        cancelled.update(connection.scalars(update(JobRow).where(is_queued).values(ending).returning(JobRow.id)))
    return frozenset(cancelled)


def cancel_unheld(connection: Connection, job_ids: Iterable[str], now: datetime) -> None:
    """Cancel at `now` each job that has not ended and that no worker holds, as the queue says: one that SQL has as
    running is one whose worker died. A worker that was only cut off is fenced from here on."""
    for chunk in chunked(job_ids):
        is_open = JobRow.id.in_(chunk) & HAS_NOT_ENDED
        ending = {"state": JobState.CANCELLED, "ended_at": now, "retry_at": None}
        ended = connection.scalars(update(JobRow).where(is_open).values(ending).returning(JobRow.id)).all()
        running = AttemptRow.job_id.in_(ended) & (AttemptRow.state == AttemptState.RUNNING)
        lost = {"state": AttemptState.LOST, "ended_at": now, "error_code": "lease_lost"}
        connection.execute(update(AttemptRow).where(running).values(lost))


def requeue_ended(connection: Connection, job_ids: Iterable[str]) -> frozenset[str]:
    """Put each job that failed, was cancelled or is dead back to queued, without result and figures; its attempts stay.

    Return the ids of those that were put back.
    """
    requeued: set[str] = set()
    for chunk in chunked(job_ids):
        is_retriable = JobRow.id.in_(chunk) & JobRow.state.in_(RETRIABLE_STATES)
        cleared = dict.fromkeys(("error_code", "error_message", "diagnosis", "ended_at"))
        anew = {"state": JobState.QUEUED, "retry_count": 0, **cleared}
        back = connection.scalars(update(JobRow).where(is_retriable).values(anew).returning(JobRow.id)).all()
        connection.execute(delete(ResultRow).where(ResultRow.job_id.in_(back)))
        connection.execute(delete(JobStatsRow).where(JobStatsRow.job_id.in_(back)))
        requeued.update(back)
    return frozenset(requeued)


def _dead_columns(record: DeadRecord, now: datetime) -> dict[str, Any]:
    return {
        "id": record.job_id,
        "queue": record.queue,
        "payload": record.raw,
        "state": JobState.DEAD,
        "epoch": 0,
        "attempt_count": 0,
        "error_code": record.error_code,
        "error_message": record.error_message,
        "diagnosis": None if record.diagnosis is None else record.diagnosis.to_json(),
        "enqueued_at": record.enqueued_at,
        "ended_at": now,
    }
