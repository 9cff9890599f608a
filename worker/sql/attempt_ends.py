"""The ends of attempts in SQL, for many jobs in the transaction that the caller opened.

An end counts only while its job still has the attempt's epoch and is running. That fence, not a clock, keeps a worker
that was cut off from overwriting its successor. Rows are written in the order of job ids, so that two workers never
wait for each other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, collate, func, insert, select, update

from worker.records import TERMINAL_STATES, AttemptState, AttemptUsage, Choice, JobState, Outcome
from worker.sql.lookups import chunked
from worker.sql.tables import AttemptRow, ChoiceRow, JobRow, JobStatsRow, ResultRow

FENCED = "fenced"  # the error code of an attempt whose end came too late to count

JOB_STATE_AFTER = {
    AttemptState.DONE: JobState.DONE,
    AttemptState.FAILED: JobState.FAILED,
    AttemptState.CANCELLED: JobState.CANCELLED,
    AttemptState.REQUEUED: JobState.QUEUED,
    AttemptState.LOST: JobState.QUEUED,
}

USAGE_PARAMETERS = {name: f"new_{name}" for name in AttemptUsage.__dataclass_fields__}
USAGE: dict[str, Any] = {name: bindparam(parameter) for name, parameter in USAGE_PARAMETERS.items()}

AttemptKey = tuple[str, int]  # job id, epoch


@dataclass(frozen=True, slots=True)
class _KnownAttempt:
    id: int
    state: AttemptState
    error_code: str | None


def finish(connection: Connection, outcomes: Sequence[Outcome]) -> frozenset[str]:
    """Write each attempt's end with its job's state, result and figures. Return the ids of jobs that were fenced.

    A fenced outcome (its job has a later epoch, has ended otherwise, or never began this attempt) changes only its own
    attempt's row. An outcome that was written before changes nothing and is not fenced. REQUEUED, LOST and any outcome
    with a retry put the job back to queued, without result and figures. Each attempt's row gets what it cost.

    Raises ValueError for an outcome that is still RUNNING.
    """
    by_key: dict[AttemptKey, Outcome] = {}
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.claim.job_id, outcome.claim.epoch)):
        if outcome.state is AttemptState.RUNNING:
            raise ValueError(f"the attempt at job {outcome.claim.job_id} has not ended")
        by_key.setdefault((outcome.claim.job_id, outcome.claim.epoch), outcome)
    held = _lock_running(connection, [job_id for job_id, _ in by_key])
    known = _find_attempts(connection, by_key.keys())
    counted: dict[int, Outcome] = {}
    late: dict[int, Outcome] = {}
    ended: dict[int, Outcome] = {}  # their ends are written, perhaps by somebody who does not know what they cost
    recorded: set[str] = set()
    fenced: set[str] = set()
    for (job_id, epoch), outcome in by_key.items():
        attempt = known.get((job_id, epoch))
        if attempt is None:
            fenced.add(job_id)
        elif attempt.state is AttemptState.RUNNING and held.get(job_id) == epoch:
            counted[attempt.id] = outcome
            recorded.add(job_id)
        elif attempt.state is outcome.state and attempt.error_code != FENCED:
            recorded.add(job_id)
            ended[attempt.id] = outcome
        else:
            fenced.add(job_id)
            is_open = attempt.state in (AttemptState.RUNNING, AttemptState.LOST) and attempt.error_code != FENCED
            (late if is_open else ended)[attempt.id] = outcome
    _write_ends(connection, counted)
    _write_late(connection, late)
    _write_missing_usage(connection, ended)
    return frozenset(fenced - recorded)  # a worker may hold a job twice, under an old lease and a new one


def _lock_running(connection: Connection, job_ids: Sequence[str]) -> dict[str, int]:
    """Lock the jobs until the transaction ends. Return the epoch of each that runs."""
    # The database's own collation may order ids otherwise than `begin` does, which sorts by code point.
    by_code_point = collate(JobRow.id, "BINARY" if connection.dialect.name == "sqlite" else "C")
    epochs: dict[str, int] = {}
    for chunk in chunked(job_ids):
        jobs = select(JobRow.id, JobRow.epoch, JobRow.state).where(JobRow.id.in_(chunk)).order_by(by_code_point)
        rows = connection.execute(jobs.with_for_update(key_share=True))
        epochs.update((row.id, row.epoch) for row in rows if row.state is JobState.RUNNING)
    return epochs


def _find_attempts(connection: Connection, keys: Collection[AttemptKey]) -> dict[AttemptKey, _KnownAttempt]:
    """Return the attempts that SQL has. It is read after the jobs are locked: what it says holds until the commit."""
    attempts: dict[AttemptKey, _KnownAttempt] = {}
    columns = (AttemptRow.id, AttemptRow.job_id, AttemptRow.epoch, AttemptRow.state, AttemptRow.error_code)
    # By job alone: a job has few attempts, and SQLite reads its whole table for a list of (job, epoch) pairs.
    for chunk in chunked(job_id for job_id, _ in keys):
        for row in connection.execute(select(*columns).where(AttemptRow.job_id.in_(chunk))):
            if (row.job_id, row.epoch) in keys:
                attempts[row.job_id, row.epoch] = _KnownAttempt(row.id, row.state, row.error_code)
    return attempts


def _write_ends(connection: Connection, outcomes: Mapping[int, Outcome]) -> None:
    """Write the ends that count; `outcomes` maps attempt ids to them, in the order of job ids."""
    if not outcomes:
        return
    fence = and_(
        JobRow.id == bindparam("of_job"), JobRow.epoch == bindparam("of_epoch"), JobRow.state == JobState.RUNNING
    )
    changed = ("state", "ended_at", "error_code", "error_message")
    ending: dict[str, Any] = {name: bindparam(f"new_{name}") for name in changed}
    retry_count = func.coalesce(bindparam("new_retry_count", type_=JobRow.retry_count.type), JobRow.retry_count)
    retry: dict[str, Any] = {"retry_at": bindparam("new_retry_at"), "retry_count": retry_count}
    connection.execute(
        update(JobRow).where(fence).values(ending | retry), [_job_ending(outcome) for outcome in outcomes.values()]
    )
    connection.execute(
        update(AttemptRow).where(AttemptRow.id == bindparam("of_attempt")).values(ending | USAGE),
        [{"of_attempt": attempt_id, **_attempt_ending(outcome)} for attempt_id, outcome in outcomes.items()],
    )
    ended = {
        attempt_id: outcome for attempt_id, outcome in outcomes.items() if _job_state_after(outcome) in TERMINAL_STATES
    }
    results = [
        _result_columns(attempt_id, outcome, outcome.text)
        for attempt_id, outcome in ended.items()
        if outcome.text is not None
    ]
    figures = [
        {"job_id": outcome.claim.job_id, **asdict(outcome.stats)}
        for outcome in ended.values()
        if outcome.stats is not None
    ]
    choices = [
        _choice_columns(outcome.claim.job_id, choice)
        for outcome in ended.values()
        if outcome.text is not None
        for choice in outcome.choices
    ]
    if results:
        connection.execute(insert(ResultRow), results)
    if choices:
        connection.execute(insert(ChoiceRow), choices)
    if figures:
        connection.execute(insert(JobStatsRow), figures)


def _write_late(connection: Connection, outcomes: Mapping[int, Outcome]) -> None:
    """End the fenced attempts; `outcomes` maps attempt ids to what they would have written."""
    if not outcomes:
        return
    late = {
        "state": AttemptState.LOST,
        "ended_at": bindparam("new_ended_at"),
        "error_code": FENCED,
        "error_message": bindparam("new_error_message"),
    }
    rows = [
        {
            "of_attempt": attempt_id,
            "new_ended_at": outcome.ended_at,
            "new_error_message": f"ended {outcome.state.value} after the job had gone on without it",
            **_usage_columns(outcome, has_result=False),
        }
        for attempt_id, outcome in outcomes.items()
    ]
    connection.execute(update(AttemptRow).where(AttemptRow.id == bindparam("of_attempt")).values(late | USAGE), rows)


def _write_missing_usage(connection: Connection, outcomes: Mapping[int, Outcome]) -> None:
    """Write what attempts cost that others ended; `outcomes` maps attempt ids to them. What is known stays."""
    if not outcomes:
        return
    is_missing = and_(AttemptRow.id == bindparam("of_attempt"), AttemptRow.engine_seconds.is_(None))
    connection.execute(
        update(AttemptRow).where(is_missing).values(USAGE),
        [
            {"of_attempt": attempt_id, **_usage_columns(outcome, has_result=False)}
            for attempt_id, outcome in outcomes.items()
        ],
    )


def _attempt_ending(outcome: Outcome) -> dict[str, Any]:
    return {
        "new_state": outcome.state,
        "new_ended_at": outcome.ended_at,
        "new_error_code": outcome.error_code,
        "new_error_message": outcome.error_message,
        **_usage_columns(outcome, has_result=outcome.text is not None),
    }


def _usage_columns(outcome: Outcome, *, has_result: bool) -> dict[str, Any]:
    """Return what an attempt cost; one that leaves no result has wasted all of it."""
    usage = outcome.usage
    columns = {parameter: getattr(usage, name) for name, parameter in USAGE_PARAMETERS.items()}
    if not has_result:
        columns[USAGE_PARAMETERS["wasted_engine_seconds"]] = usage.engine_seconds
    return columns


def _job_state_after(outcome: Outcome) -> JobState:
    return JobState.QUEUED if outcome.retry is not None else JOB_STATE_AFTER[outcome.state]


def _job_ending(outcome: Outcome) -> dict[str, Any]:
    state = _job_state_after(outcome)
    retry = outcome.retry
    waits_again = state not in TERMINAL_STATES
    goes_on_at_once = waits_again and retry is None  # a back-off shows the error that caused it
    return {
        "of_job": outcome.claim.job_id,
        "of_epoch": outcome.claim.epoch,
        "new_state": state,
        "new_ended_at": None if waits_again else outcome.ended_at,
        "new_error_code": None if goes_on_at_once else outcome.error_code,
        "new_error_message": None if goes_on_at_once else outcome.error_message,
        "new_retry_at": None if retry is None else retry.due_at,
        "new_retry_count": None if retry is None else retry.retry_count,
    }


def _result_columns(attempt_id: int, outcome: Outcome, text: str) -> dict[str, Any]:
    return {
        "job_id": outcome.claim.job_id,
        "attempt_id": attempt_id,
        "text": text,
        "token_ids": list(outcome.token_ids),
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "created_at": outcome.ended_at,
        "logprobs": outcome.logprobs,
        "prompt_logprobs": outcome.prompt_logprobs,
        "prompt_token_ids": outcome.prompt_token_ids,
        "mean_logprob": outcome.mean_logprob,
    }


def _choice_columns(job_id: str, choice: Choice) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "choice_index": choice.index,
        "text": choice.text,
        "token_ids": list(choice.token_ids),
        "finish_reason": choice.finish_reason,
        "logprobs": choice.logprobs,
        "mean_logprob": choice.mean_logprob,
    }
