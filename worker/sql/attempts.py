"""The begin of attempts in SQL, for many jobs in the transaction that the caller opened; `attempt_ends` has their ends.

Rows are written in the order of job ids, so that two workers never wait for each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, insert, null, select, update

from worker.records import TERMINAL_STATES, AttemptState, Claim, JobState
from worker.sql.database import upserting
from worker.sql.job_changes import HAS_NOT_ENDED, SubmittedJob, add_batches, submitted_columns
from worker.sql.lookups import chunked
from worker.sql.tables import AttemptRow, JobRow, WorkerRow


@dataclass(frozen=True, slots=True)
class BegunAttempt:
    """What SQL knows of a job whose attempt began: its attempts, this one included, and the retries it has spent."""

    attempt_count: int
    retry_count: int


@dataclass(frozen=True, slots=True)
class BegunAttempts:
    """What became of claims, by job id: those of `begun` are running in SQL."""

    begun: Mapping[str, BegunAttempt]
    terminal: Mapping[str, JobState]  # ended before: acknowledge these, do not run them
    stale: frozenset[str]  # claimed again since, or under the same epoch by another worker: let these go


def begin(connection: Connection, claims: Sequence[Claim], worker_name: str) -> BegunAttempts:
    """Write the jobs as running under their claims' epochs, with an attempt each; earlier running attempts are lost.

    Of two claims of one job the later epoch counts. A worker that repeats a claim of its own is not stale.
    """
    latest = {claim.job_id: claim for claim in sorted(claims, key=lambda claim: (claim.job_id, claim.epoch))}
    if not latest:
        return BegunAttempts({}, {}, frozenset())
    submitted = {
        job_id: SubmittedJob(job_id, claim.queue, claim.job, claim.payload_json, claim.enqueued_at)
        for job_id, claim in latest.items()
    }
    add_batches(connection, submitted.values())
    served_model = connection.scalar(select(WorkerRow.model).where(WorkerRow.name == worker_name))
    rows = [
        {**submitted_columns(submitted[job_id]), **_running_columns(claim, served_model)}
        for job_id, claim in latest.items()
    ]
    begun = _upsert_running(connection, rows)
    news = [claim for job_id, claim in latest.items() if job_id in begun]
    _lose_attempts(connection, [claim for claim in news if begun[claim.job_id].attempt_count > 1])
    if news:
        connection.execute(insert(AttemptRow), [_attempt_columns(claim, worker_name) for claim in news])
    refused = {job_id: claim for job_id, claim in latest.items() if job_id not in begun}
    explained = _explain_refused(connection, refused, worker_name)
    return replace(explained, begun={**begun, **explained.begun})


def _running_columns(claim: Claim, served_model: str | None) -> dict[str, Any]:
    return {
        "state": JobState.RUNNING,
        "epoch": claim.epoch,
        "attempt_count": 1,
        "started_at": claim.claimed_at,
        "model": claim.job.model or served_model,  # a job that names none takes the worker's
    }


def _attempt_columns(claim: Claim, worker_name: str) -> dict[str, Any]:
    return {
        "job_id": claim.job_id,
        "epoch": claim.epoch,
        "worker_name": worker_name,
        "state": AttemptState.RUNNING,
        "started_at": claim.claimed_at,
    }


def _upsert_running(connection: Connection, rows: list[dict[str, Any]]) -> dict[str, BegunAttempt]:
    """Insert or advance each job to its claim. Return those that took it; the retries they have spent stay spent."""
    statement = upserting(connection, JobRow)
    excluded = statement.excluded
    replaced = ("queue", "tenant", "model", "batch_id", "custom_id", "payload", "state", "epoch", "deadline_at")
    advance = statement.on_conflict_do_update(
        index_elements=[JobRow.id],
        set_={
            **{name: excluded[name] for name in replaced},
            "attempt_count": JobRow.attempt_count + 1,
            "enqueued_at": func.coalesce(JobRow.enqueued_at, excluded.enqueued_at),
            "started_at": func.coalesce(JobRow.started_at, excluded.started_at),
            # Not None: SQLAlchemy would take it for a parameter, and write row by row.
            **dict.fromkeys(("error_code", "error_message", "ended_at", "retry_at"), null()),
        },
        where=and_(JobRow.epoch < excluded.epoch, HAS_NOT_ENDED),
    ).returning(JobRow.id, JobRow.attempt_count, JobRow.retry_count)
    return {row.id: BegunAttempt(row.attempt_count, row.retry_count) for row in connection.execute(advance, rows)}


def _lose_attempts(connection: Connection, claims: Sequence[Claim]) -> None:
    """End the running attempts that these claims supersede."""
    if not claims:
        return
    superseded = and_(
        AttemptRow.job_id == bindparam("of_job"),
        AttemptRow.epoch < bindparam("new_epoch"),
        AttemptRow.state == AttemptState.RUNNING,
    )
    lost = {
        "state": AttemptState.LOST,
        "ended_at": bindparam("claimed_at"),
        "error_code": "lease_lost",
        "error_message": "the lease ran out and the job was claimed again",
    }
    connection.execute(
        update(AttemptRow).where(superseded).values(lost),
        [{"of_job": claim.job_id, "new_epoch": claim.epoch, "claimed_at": claim.claimed_at} for claim in claims],
    )


def _explain_refused(connection: Connection, refused: Mapping[str, Claim], worker_name: str) -> BegunAttempts:
    begun: dict[str, BegunAttempt] = {}
    terminal: dict[str, JobState] = {}
    stale: set[str] = set()
    latest_attempt = and_(AttemptRow.job_id == JobRow.id, AttemptRow.epoch == JobRow.epoch)
    counts = (JobRow.attempt_count, JobRow.retry_count)
    attempt = (AttemptRow.worker_name, AttemptRow.state.label("attempt_state"))
    columns = (JobRow.id, JobRow.state, JobRow.epoch, *counts, *attempt)
    for chunk in chunked(refused):
        jobs = select(*columns).outerjoin_from(JobRow, AttemptRow, latest_attempt).where(JobRow.id.in_(chunk))
        for row in connection.execute(jobs):
            is_repeated = (row.epoch, row.worker_name) == (refused[row.id].epoch, worker_name)
            if row.state in TERMINAL_STATES:
                terminal[row.id] = row.state
            elif is_repeated and row.attempt_state is AttemptState.RUNNING:
                begun[row.id] = BegunAttempt(row.attempt_count, row.retry_count)
            else:
                stale.add(row.id)
    return BegunAttempts(begun, terminal, frozenset(stale))
