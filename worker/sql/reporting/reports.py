"""The reports of one database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, text

from worker.records import JobState
from worker.sql.database import reading
from worker.sql.reporting import details, figures
from worker.sql.reporting.filters import Dimension, Grouping, ReportFilter, group_values, order_key, period_of
from worker.sql.reporting.parts import divide, statement
from worker.sql.reporting.rows import (
    CostsRow,
    FailureRow,
    LatencyRow,
    MemoryRow,
    PrefixRow,
    SavingsRow,
    ScheduleRun,
    SlowJob,
    SummaryReport,
    ThroughputRow,
    TotalsRow,
    WasteRow,
    WorkerTimeRow,
)
from worker.sql.reporting.totals import group_totals, ratio
from worker.sql.rollups.measures import LATENCIES, MEMORY
from worker.sql.rollups.rolling import rolled_span
from worker.sql.rollups.sources import COSTS, FAILURES, TOTALS, WASTE, Source

ADDITIVE = frozenset({"kv_block_seconds"})  # the figures whose sum over jobs means something: blocks x time


# By default PostgreSQL would sort on disk, and compile for seconds what it then runs for one.
_FOR_LARGE_QUERIES = "SELECT set_config('work_mem', '128MB', true), set_config('jit', 'off', true)"


class Reports:
    """The reports of one database, each from one snapshot. Every method raises ServiceUnavailable when it cannot be
    reached. Rows are sorted by group, unless a method says otherwise.
    """

    def __init__(self, engine: Engine, *, exact_jobs: int = figures.EXACT_JOBS) -> None:
        """Percentiles of more than `exact_jobs` jobs come from histograms."""
        self.engine = engine
        self.exact_jobs = exact_jobs

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Give the database as it is at one moment, and PostgreSQL more room than it has for small queries."""
        with reading(self.engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(_FOR_LARGE_QUERIES))
            yield connection

    def span(self, chosen: ReportFilter) -> tuple[datetime, datetime] | None:
        """Return when the first and the last of the jobs ended, None where none has."""
        with self._snapshot() as connection:
            return details.span(connection, chosen)

    def summary(self, chosen: ReportFilter) -> SummaryReport:
        """Return what became of the jobs, how many tokens went through and how fast."""
        with self._snapshot() as connection:
            (totals,) = group_totals(connection, chosen, ())
            failures = _failures_by_code(connection, chosen)
        return _summary(totals, failures)

    def totals(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[TotalsRow, ...]:
        """Return what became of each group's jobs; one row without groups, if there are jobs or not."""
        with self._snapshot() as connection:
            return group_totals(connection, chosen, by)

    def throughput(self, chosen: ReportFilter, by: Grouping = (Dimension.HOUR,)) -> tuple[ThroughputRow, ...]:
        """Return what each group got through, a row for each hour unless told otherwise."""
        period = min((period for each in by if (period := period_of(each)) is not None), default=None)
        rows = (row for row in self.totals(chosen, by) if row.last_end_at is not None or row.jobs_cancelled)
        return tuple(_throughput(row, period) for row in rows)

    def latency(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[LatencyRow, ...]:
        """Return a row for each group and latency of the jobs that are done, in the order of a job's life."""
        found = self._distributions(LATENCIES, chosen, by)
        return tuple(
            LatencyRow(group, metric, 0, None, None, None, None, None, 0.0)
            if of is None
            else LatencyRow(
                group,
                metric,
                of.count,
                of.mean,
                of.percentiles[50],
                of.percentiles[90],
                of.percentiles[99],
                of.largest,
                of.relative_error,
            )
            for group, metric, of in found
        )

    def memory(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[MemoryRow, ...]:
        """Return a row for each group and memory figure, of every job that has figures, however it ended."""
        found = self._distributions(MEMORY, chosen, by)
        return tuple(
            MemoryRow(group, metric, 0, None, None, None, None, None, None, 0.0)
            if of is None
            else MemoryRow(
                group,
                metric,
                of.count,
                of.mean,
                of.percentiles[50],
                of.percentiles[90],
                of.percentiles[99],
                of.largest,
                of.total if metric in ADDITIVE else None,
                of.relative_error,
            )
            for group, metric, of in found
        )

    def savings(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[SavingsRow, ...]:
        """Return what each group's jobs took of the KV cache, and what paging and sharing saved."""
        return tuple(_savings(by, row) for row in self._counts(TOTALS, chosen, by) if row["kv_block_seconds"])

    def prefix(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[PrefixRow, ...]:
        """Return how much of each group's prompts the prefix cache held."""
        rows = self._counts(TOTALS, chosen, by)
        return tuple(_prefix(by, row) for row in rows if row["jobs_with_prefix_figures"])

    def failures(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[FailureRow, ...]:
        """Return each group's failures by code, the most frequent first."""
        rows = self._counts(FAILURES, chosen, by)
        found = [FailureRow(group_values(by, row), **_named(row, FAILURES)) for row in rows]
        return tuple(sorted(found, key=lambda row: (order_key(row.group), -row.jobs, row.error_code)))

    def waste(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[WasteRow, ...]:
        """Return what each group's jobs, those that have ended, had computed for nothing, by reason."""
        rows = self._counts(WASTE, chosen, by)
        found = [WasteRow(group_values(by, row), **_named(row, WASTE)) for row in rows]
        return tuple(sorted(found, key=lambda row: (order_key(row.group), row.reason)))

    def costs(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[CostsRow, ...]:
        """Return what each group's jobs, those that have ended, cost."""
        rows = self._counts(COSTS, chosen, by)
        found = [CostsRow(group_values(by, row), **_named(row, COSTS)) for row in rows]
        return tuple(sorted(found, key=lambda row: (order_key(row.group), row.currency or "")))

    def worker_time(self, chosen: ReportFilter, by: Grouping = ()) -> tuple[WorkerTimeRow, ...]:
        """Return where workers' time went, what no job is charged with included, over the whole hours that `since` and
        `until` touch. `by` may have MODEL and times; of the filter, the model counts too and the rest cannot.
        """
        with self._snapshot() as connection:
            return details.worker_time(connection, chosen, by)

    def schedules(self, chosen: ReportFilter) -> tuple[ScheduleRun, ...]:
        """Return the runs of schedules whose slots are from `since` and before `until`, the latest first."""
        with self._snapshot() as connection:
            return details.schedule_runs(connection, chosen)

    def slowest(self, chosen: ReportFilter, limit: int = 20) -> tuple[SlowJob, ...]:
        """Return the jobs that took longest from their enqueueing to their end, with their phases."""
        with self._snapshot() as connection:
            return details.slowest(connection, chosen, limit)

    def job(self, job_id: str) -> SlowJob | None:
        """Return one job with its phases; None where it is unknown or has no figures."""
        with self._snapshot() as connection:
            return details.one_job(connection, job_id)

    def rolled_until(self) -> datetime | None:
        """Return up to when jobs are rolled up, None where none are."""
        with self._snapshot() as connection:
            span = rolled_span(connection)
        return None if span is None else span[1]

    def _counts(self, source: Source, chosen: ReportFilter, by: Grouping) -> Sequence[RowMapping]:
        with self._snapshot() as connection:
            parts = divide(connection, source, chosen, by)
            rows = connection.execute(statement(source, parts, chosen, by)).mappings().all()
        return sorted(rows, key=lambda row: order_key(group_values(by, row)))

    def _distributions(
        self, metrics: Sequence[str], chosen: ReportFilter, by: Grouping
    ) -> list[tuple[tuple[Any, ...], str, figures.Distribution | None]]:
        """Return the metrics of each group in their order; without groups, there are rows for those that no job has."""
        found = self._figures(metrics, chosen, by)
        known = {(of.group, of.metric): of for of in found}
        groups = sorted({of.group for of in found}, key=order_key) if by else [()]
        return [(group, metric, known.get((group, metric))) for group in groups for metric in metrics]

    def _figures(self, metrics: Sequence[str], chosen: ReportFilter, by: Grouping) -> list[figures.Distribution]:
        with self._snapshot() as connection:
            return figures.distributions(connection, metrics, chosen, by, self.exact_jobs)


def _failures_by_code(connection: Connection, chosen: ReportFilter) -> dict[str, int]:
    rows = connection.execute(statement(FAILURES, divide(connection, FAILURES, chosen, ()), chosen, ())).mappings()
    codes: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (-row["jobs"], row["error_code"])):
        codes[row["error_code"]] = codes.get(row["error_code"], 0) + row["jobs"]
    return codes


def _named(row: RowMapping, source: Source) -> dict[str, Any]:
    return {name: row[name] for name in (*source.keys, *source.measures)}


def _summary(totals: TotalsRow, failures: dict[str, int]) -> SummaryReport:
    first, last = totals.first_claim_at, totals.last_end_at
    span_s = None if first is None or last is None else (last - first).total_seconds()
    return SummaryReport(
        jobs_by_state={state: getattr(totals, f"jobs_{state.value}") for state in JobState},
        failures_by_error_code=failures,
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        prefix_hit_tokens=totals.prefix_hit_tokens,
        prefix_hit_share=totals.prefix_hit_share,
        preemptions=totals.preemptions,
        jobs_with_retries=totals.jobs_with_retries,
        first_claim_at=first,
        last_end_at=last,
        span_s=span_s,
        completion_tokens_per_s=ratio(totals.completion_tokens, span_s),
        jobs_done_per_s=ratio(totals.jobs_done, span_s),
    )


def _throughput(row: TotalsRow, period: int | None) -> ThroughputRow:
    seconds = float(period) if period is not None else None
    if seconds is None and row.first_claim_at is not None and row.last_end_at is not None:
        seconds = (row.last_end_at - row.first_claim_at).total_seconds()
    return ThroughputRow(
        row.group,
        row.jobs_done,
        row.jobs_failed + row.jobs_dead,
        row.jobs_cancelled,
        row.prompt_tokens,
        row.completion_tokens,
        ratio(row.jobs_done, seconds),
        ratio(row.prompt_tokens, seconds),
        ratio(row.completion_tokens, seconds),
    )


def _prefix(by: Grouping, row: RowMapping) -> PrefixRow:
    return PrefixRow(
        group_values(by, row),
        row["jobs_with_prefix_figures"],
        row["jobs_with_hit"],
        row["prefix_prompt_tokens"],
        row["prefix_hit_tokens"],
        ratio(row["prefix_hit_tokens"], row["prefix_prompt_tokens"]),
    )


def _savings(by: Grouping, row: RowMapping) -> SavingsRow:
    limit, against_limit = row["kv_block_seconds_limit"], row["saved_against_limit_block_seconds"]
    share, by_sharing = row["kv_block_seconds_share"], row["saved_by_sharing_block_seconds"]
    return SavingsRow(
        group_values(by, row),
        row["kv_block_seconds"],
        limit,
        share,
        against_limit,
        None if against_limit is None else ratio(against_limit, limit),
        by_sharing,
        None if by_sharing is None else ratio(by_sharing, share + by_sharing),
    )
