"""The reports' queries, the same SQL on SQLite and PostgreSQL.

Percentiles are by nearest rank: the smallest value that at least p percent of the values do not exceed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Engine,
    RowMapping,
    Select,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute

from worker.records import JobState
from worker.sql.database import reading
from worker.sql.tables import JobRow, JobStatsRow, ResultRow

LATENCIES = ("queue_ms", "tokenize_ms", "ttft_ms", "itl_mean_ms", "itl_p99_ms", "e2e_ms")
MEMORY = ("kv_blocks_peak", "kv_bytes_peak", "kv_block_seconds", "memory_peak_bytes")
ADDITIVE = frozenset({"kv_block_seconds"})  # the figures whose sum over jobs means something: blocks x time


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Which jobs a report is about; None takes all.

    `since` (UTC) takes the jobs that ended at or after it and those that have not ended. `model` is the one that jobs
    asked for.
    """

    since: datetime | None = None
    queue: str | None = None
    batch: str | None = None
    model: str | None = None


class PrefixGrouping(Enum):
    """What the prefix report has a row for each of."""

    TENANT_MODEL = "tenant_model"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """What became of the jobs. Rates are over `span_s`, and None where that is zero or unknown.

    Tokens count every job with a result; `prefix_hit_share` is the part of its prompt tokens that the cache held.
    """

    jobs_by_state: Mapping[JobState, int]
    failures_by_error_code: Mapping[str, int]  # of jobs that failed or are dead
    prompt_tokens: int
    completion_tokens: int
    prefix_hit_tokens: int
    prefix_hit_share: float | None
    preemptions: int
    jobs_with_retries: int  # more than one attempt
    first_claim_at: datetime | None
    last_end_at: datetime | None
    span_s: float | None  # first claim -> last end
    completion_tokens_per_s: float | None
    jobs_done_per_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One latency over the jobs that have it, in milliseconds; None where no job has."""

    metric: str
    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One memory figure over the jobs that have it, in the unit that its name tells; None where no job has."""

    metric: str
    count: int
    mean: float | None
    p50: float | None
    p99: float | None
    max: float | None
    total: float | None  # only where a sum over jobs means something


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """How much of a group's prompts the prefix cache held. `group` maps the grouping's columns to their values."""

    group: Mapping[str, str | None]
    jobs: int
    jobs_with_hit: int
    prompt_tokens: int
    prefix_hit_tokens: int
    hit_rate: float | None  # None without prompt tokens


class Reports:
    """The reports of one database, each from one snapshot. Every method raises ServiceUnavailable when it cannot be
    reached.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def summary(self, chosen: ReportFilter) -> SummaryReport:
        """Return what became of the jobs, how many tokens went through and how fast."""
        conditions = _conditions(chosen)
        failures = (
            select(func.coalesce(JobRow.error_code, "unknown").label("code"), func.count().label("jobs"))
            .where(JobRow.state.in_([JobState.FAILED, JobState.DEAD]), *conditions)
            .group_by(JobRow.error_code)
            .order_by(func.count().desc(), JobRow.error_code)
        )
        with reading(self._engine) as connection:
            by_state = connection.execute(_totals_by_state().where(*conditions)).mappings().all()
            failed = {row.code: row.jobs for row in connection.execute(failures)}
        return _summary(by_state, failed)

    def latency(self, chosen: ReportFilter) -> tuple[LatencyRow, ...]:
        """Return a row for each latency of the jobs that are done, in the order of a job's life."""
        rows = self._distributions(LATENCIES, [JobRow.state == JobState.DONE, *_conditions(chosen)])
        return tuple(LatencyRow(**{name: row[name] for name in LatencyRow.__dataclass_fields__}) for row in rows)

    def memory(self, chosen: ReportFilter) -> tuple[MemoryRow, ...]:
        """Return a row for each memory figure, of every job that has figures, however it ended."""
        return tuple(
            MemoryRow(
                **{name: row[name] for name in MemoryRow.__dataclass_fields__ if name != "total"},
                total=row["total"] if row["metric"] in ADDITIVE else None,
            )
            for row in self._distributions(MEMORY, _conditions(chosen))
        )

    def prefix(self, chosen: ReportFilter, grouping: PrefixGrouping) -> tuple[PrefixRow, ...]:
        """Return a row for each group of jobs with results, the one with most prompt tokens first."""
        columns = _group_columns(grouping)
        prompt_tokens = func.sum(ResultRow.prompt_tokens).label("prompt_tokens")
        statement = (
            select(
                *columns,
                func.count().label("jobs"),
                func.sum(case((JobStatsRow.prefix_hit_tokens > 0, 1), else_=0)).label("jobs_with_hit"),
                prompt_tokens,
                func.sum(JobStatsRow.prefix_hit_tokens).label("prefix_hit_tokens"),
            )
            .join_from(JobRow, ResultRow, ResultRow.job_id == JobRow.id)
            .join(JobStatsRow, JobStatsRow.job_id == JobRow.id)
            .where(*_conditions(chosen))
            .group_by(*columns)
            .order_by(prompt_tokens.desc(), *columns)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(statement).mappings().all()
        return tuple(_prefix_row(row, {column.key: row[column.key] for column in columns}) for row in rows)

    def _distributions(self, metrics: Sequence[str], conditions: Sequence[ColumnElement[bool]]) -> list[RowMapping]:
        """Return the count, mean, percentiles, maximum and total of each metric, in the order of `metrics`."""
        statement = union_all(*(_distribution(metric, conditions) for metric in metrics))
        with reading(self._engine) as connection:
            rows = {row["metric"]: row for row in connection.execute(statement).mappings()}
        return [rows[metric] for metric in metrics]


def _conditions(chosen: ReportFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if chosen.since is not None:
        conditions.append(or_(JobRow.ended_at >= chosen.since, JobRow.ended_at.is_(None)))
    if chosen.queue is not None:
        conditions.append(JobRow.queue == chosen.queue)
    if chosen.batch is not None:
        conditions.append(JobRow.batch_id == chosen.batch)
    if chosen.model is not None:
        conditions.append(JobRow.model == chosen.model)
    return conditions


def _group_columns(grouping: PrefixGrouping) -> tuple[InstrumentedAttribute[Any], ...]:
    match grouping:
        case PrefixGrouping.QUEUE:
            return (JobRow.queue,)
        case PrefixGrouping.TENANT_MODEL:
            return (JobRow.tenant, JobRow.model)


def _totals_by_state() -> Select[*tuple[Any, ...]]:
    was_claimed = JobRow.started_at.is_not(None)
    has_result = ResultRow.job_id.is_not(None)
    return (
        select(
            JobRow.state,
            func.count().label("jobs"),
            func.sum(case((JobRow.attempt_count > 1, 1), else_=0)).label("jobs_with_retries"),
            func.min(JobRow.started_at).label("first_claim_at"),
            func.max(case((was_claimed, JobRow.ended_at))).label("last_end_at"),
            func.sum(ResultRow.prompt_tokens).label("prompt_tokens"),
            func.sum(ResultRow.completion_tokens).label("completion_tokens"),
            func.sum(case((has_result, JobStatsRow.prefix_hit_tokens))).label("prefix_hit_tokens"),
            func.sum(JobStatsRow.preemptions).label("preemptions"),
        )
        .outerjoin_from(JobRow, ResultRow, ResultRow.job_id == JobRow.id)
        .outerjoin(JobStatsRow, JobStatsRow.job_id == JobRow.id)
        .group_by(JobRow.state)
    )


def _distribution(metric: str, conditions: Sequence[ColumnElement[bool]]) -> Select[*tuple[Any, ...]]:
    column = JobStatsRow.__table__.c[metric]
    value = cast(column, Double).label("value")  # whole and fractional figures share the columns of one answer
    ranked = (
        select(value, func.row_number().over(order_by=column).label("rank"), func.count().over().label("size"))
        .select_from(JobStatsRow)
        .join(JobRow, JobRow.id == JobStatsRow.job_id)
        .where(column.is_not(None), *conditions)
        .subquery()
    )

    def percentile(percent: int) -> ColumnElement[float | None]:
        return func.min(case((ranked.c.rank * 100 >= ranked.c.size * percent, ranked.c.value)))

    return select(
        literal(metric).label("metric"),
        func.count().label("count"),
        func.avg(ranked.c.value).label("mean"),
        percentile(50).label("p50"),
        percentile(90).label("p90"),
        percentile(99).label("p99"),
        func.max(ranked.c.value).label("max"),
        func.sum(ranked.c.value).label("total"),
    ).select_from(ranked)


def _summary(by_state: Sequence[RowMapping], failures: Mapping[str, int]) -> SummaryReport:
    def total(name: str) -> int:
        return sum(_int(row[name]) for row in by_state)

    jobs_by_state = dict.fromkeys(JobState, 0) | {row["state"]: row["jobs"] for row in by_state}
    first = min((row["first_claim_at"] for row in by_state if row["first_claim_at"] is not None), default=None)
    last = max((row["last_end_at"] for row in by_state if row["last_end_at"] is not None), default=None)
    span_s = None if first is None or last is None else (last - first).total_seconds()
    return SummaryReport(
        jobs_by_state=jobs_by_state,
        failures_by_error_code=failures,
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        prefix_hit_tokens=total("prefix_hit_tokens"),
        prefix_hit_share=_ratio(total("prefix_hit_tokens"), total("prompt_tokens")),
        preemptions=total("preemptions"),
        jobs_with_retries=total("jobs_with_retries"),
        first_claim_at=first,
        last_end_at=last,
        span_s=span_s,
        completion_tokens_per_s=_ratio(total("completion_tokens"), span_s),
        jobs_done_per_s=_ratio(jobs_by_state[JobState.DONE], span_s),
    )


def _prefix_row(row: RowMapping, group: Mapping[str, str | None]) -> PrefixRow:
    prompt_tokens, hit_tokens = _int(row["prompt_tokens"]), _int(row["prefix_hit_tokens"])
    return PrefixRow(
        group=group,
        jobs=row["jobs"],
        jobs_with_hit=_int(row["jobs_with_hit"]),
        prompt_tokens=prompt_tokens,
        prefix_hit_tokens=hit_tokens,
        hit_rate=_ratio(hit_tokens, prompt_tokens),
    )


def _int(total: int | Decimal | None) -> int:
    """Return a SUM as an int: PostgreSQL's is a Decimal, and that of no rows is NULL."""
    return 0 if total is None else int(total)


def _ratio(part: float, whole: float | None) -> float | None:
    return None if whole is None or whole <= 0 else part / whole
