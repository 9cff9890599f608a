"""Reading jobs, their results and their batches back out of SQL, as frozen values."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from worker.inputs import InputEnd
from worker.records import AttemptState, AttemptUsage, Choice, JobState, JobStats
from worker.sql.tables import AttemptRow, BatchRow, ChoiceRow, JobRow, JobStatsRow, ResultRow, WorkerRow

SECONDS_PER_HOUR = 3600
IDS_PER_STATEMENT = 500  # well below what either database takes as parameters of one statement


@dataclass(frozen=True, slots=True)
class AttemptDetail:
    """One try at a job. Times are UTC."""

    epoch: int
    worker_name: str
    state: AttemptState
    started_at: datetime
    ended_at: datetime | None
    error_code: str | None
    error_message: str | None
    usage: AttemptUsage | None  # None while it runs, and for good where its worker died
    cost: float | None  # of its engine seconds; None where its worker has no price, and where they are not known
    currency: str | None


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's output. `created_at` is when its attempt ended, UTC."""

    job_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    created_at: datetime
    logprobs: list[dict[str, Any]] | None
    prompt_logprobs: list[dict[str, Any]] | None
    prompt_token_ids: list[int] | None
    mean_logprob: float | None  # by which best_of chose it
    choices: tuple[Choice, ...]  # the outputs beside the first


@dataclass(frozen=True, slots=True)
class JobDetail:
    """Everything that SQL knows of one job. Times are UTC; attempts are in the order of their epochs."""

    id: str
    queue: str
    tenant: str | None
    model: str | None
    batch_id: str | None
    custom_id: str | None
    payload: str
    state: JobState
    epoch: int
    attempt_count: int
    error_code: str | None
    error_message: str | None
    diagnosis: str | None
    enqueued_at: datetime | None
    deadline_at: datetime | None
    retry_at: datetime | None
    retry_count: int
    started_at: datetime | None
    ended_at: datetime | None
    attempts: tuple[AttemptDetail, ...]
    result: JobResult | None
    stats: JobStats | None


@dataclass(frozen=True, slots=True)
class StateCount:
    """How many jobs of a queue are in a state."""

    queue: str
    state: JobState
    jobs: int


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far a batch is. `size` is what its producer announced; `states` counts the jobs that SQL has seen."""

    batch_id: str
    size: int | None
    created_at: datetime
    states: Mapping[JobState, int]


def chunked(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yield the distinct ids in rising order, at most `IDS_PER_STATEMENT` at a time."""
    rising = iter(sorted(set(ids)))
    while chunk := list(islice(rising, IDS_PER_STATEMENT)):
        yield chunk


def find_job(connection: Connection, job_id: str) -> JobDetail | None:
    """Return the job with its attempts, result and figures, or None."""
    job = connection.execute(select(JobRow.__table__).where(JobRow.id == job_id)).mappings().one_or_none()
    if job is None:
        return None
    stats = select(*_columns(JobStatsRow, JobStats)).where(JobStatsRow.job_id == job_id)
    figures = connection.execute(stats).mappings().one_or_none()
    return JobDetail(
        **job,
        attempts=_find_attempts(connection, job_id),
        result=find_results(connection, [job_id]).get(job_id),
        stats=None if figures is None else JobStats(**figures),
    )


def _find_attempts(connection: Connection, job_id: str) -> tuple[AttemptDetail, ...]:
    """Return the attempts at a job, with the prices of the workers that made them."""
    own = ("epoch", "worker_name", "state", "started_at", "ended_at", "error_code", "error_message")
    statement = (
        select(
            *(getattr(AttemptRow, name) for name in own),
            *_columns(AttemptRow, AttemptUsage),
            WorkerRow.price_per_engine_hour,
            WorkerRow.price_currency,
        )
        .outerjoin_from(AttemptRow, WorkerRow, WorkerRow.name == AttemptRow.worker_name)
        .where(AttemptRow.job_id == job_id)
        .order_by(AttemptRow.epoch)
    )
    return tuple(
        AttemptDetail(**{name: row[name] for name in own}, **_usage_and_cost(row))
        for row in connection.execute(statement).mappings()
    )


def _usage_and_cost(row: RowMapping) -> dict[str, Any]:
    if row["engine_seconds"] is None:
        return {"usage": None, "cost": None, "currency": None}
    price = row["price_per_engine_hour"]
    return {
        "usage": AttemptUsage(**{name: row[name] for name in AttemptUsage.__dataclass_fields__}),
        "cost": None if price is None else row["engine_seconds"] / SECONDS_PER_HOUR * price,
        "currency": row["price_currency"],
    }


def find_states(connection: Connection, job_ids: Iterable[str]) -> dict[str, JobState]:
    """Return the state of each job that SQL has seen."""
    states: dict[str, JobState] = {}
    for chunk in chunked(job_ids):
        rows = connection.execute(select(JobRow.id, JobRow.state).where(JobRow.id.in_(chunk)))
        states.update((row.id, row.state) for row in rows)
    return states


def find_input_ends(connection: Connection, job_ids: Iterable[str]) -> dict[str, InputEnd]:
    """Return how each job that SQL has seen stands, as an input of others."""
    ends: dict[str, InputEnd] = {}
    columns = (JobRow.id, JobRow.tenant, JobRow.state, JobRow.error_code, JobRow.error_message, ResultRow.text)
    for chunk in chunked(job_ids):
        jobs = select(*columns).outerjoin(ResultRow, ResultRow.job_id == JobRow.id).where(JobRow.id.in_(chunk))
        for row in connection.execute(jobs):
            error = f"{row.error_code}: {row.error_message}" if row.error_code else None
            ends[row.id] = InputEnd(row.tenant, row.state, row.text, error)
    return ends


def find_unfinished(connection: Connection, batch_id: str, after_id: str, limit: int) -> Sequence[str]:
    """Return the ids of a batch's jobs that have not ended, in their order, the first `limit` behind `after_id`."""
    waits_or_runs = JobRow.state.in_((JobState.QUEUED, JobState.RUNNING))
    statement = select(JobRow.id).where(JobRow.batch_id == batch_id, JobRow.id > after_id, waits_or_runs)
    return connection.scalars(statement.order_by(JobRow.id).limit(limit)).all()


def find_results(connection: Connection, job_ids: Iterable[str]) -> dict[str, JobResult]:
    """Return the result of each job that has one."""
    columns = [getattr(ResultRow, name) for name in JobResult.__dataclass_fields__ if name != "choices"]
    results: dict[str, JobResult] = {}
    for chunk in chunked(job_ids):
        choices = find_choices(connection, chunk)
        rows = connection.execute(select(*columns).where(ResultRow.job_id.in_(chunk))).mappings()
        results.update((row["job_id"], _result(row, choices.get(row["job_id"], ()))) for row in rows)
    return results


def find_choices(connection: Connection, job_ids: Iterable[str]) -> dict[str, tuple[Choice, ...]]:
    """Return the outputs beside the first of each job that has several, in the order of their indexes."""
    choices: defaultdict[str, list[Choice]] = defaultdict(list)
    for chunk in chunked(job_ids):
        rows = select(ChoiceRow).where(ChoiceRow.job_id.in_(chunk)).order_by(ChoiceRow.job_id, ChoiceRow.choice_index)
        for row in connection.execute(rows):
            kept = (row.finish_reason, row.logprobs, row.mean_logprob)
            choices[row.job_id].append(Choice(row.choice_index, row.text, tuple(row.token_ids), *kept))
    return {job_id: tuple(some) for job_id, some in choices.items()}


def count_states(connection: Connection) -> tuple[StateCount, ...]:
    """Return the number of jobs by queue and state."""
    statement = (
        select(JobRow.queue, JobRow.state, func.count().label("jobs"))
        .group_by(JobRow.queue, JobRow.state)
        .order_by(JobRow.queue, JobRow.state)
    )
    return tuple(StateCount(row.queue, row.state, row.jobs) for row in connection.execute(statement))


def find_batch(connection: Connection, batch_id: str) -> BatchProgress | None:
    """Return the batch's progress, or None."""
    batch = connection.execute(select(BatchRow.size, BatchRow.created_at).where(BatchRow.id == batch_id)).one_or_none()
    if batch is None:
        return None
    counts = select(JobRow.state, func.count().label("jobs")).where(JobRow.batch_id == batch_id).group_by(JobRow.state)
    states = {row.state: row.jobs for row in connection.execute(counts)}
    return BatchProgress(batch_id, batch.size, batch.created_at, states)


def _result(row: RowMapping, choices: tuple[Choice, ...]) -> JobResult:
    return JobResult(**{**row, "token_ids": tuple(row["token_ids"]), "choices": choices})


def _columns(table: type[Any], kind: type[Any]) -> Sequence[Any]:
    """Return the columns of `table` that carry the fields of the dataclass `kind`."""
    return [getattr(table, name) for name in kind.__dataclass_fields__]
