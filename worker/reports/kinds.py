"""The kinds of reports: which query each one is, what it can be asked, what of it is worth a line over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from worker.reports.timeline import HOUR, MINUTE
from worker.sql.reporting import (
    Bucket,
    CostsRow,
    Dimension,
    FailureRow,
    LatencyRow,
    MemoryRow,
    PrefixRow,
    ReportFilter,
    Reports,
    SavingsRow,
    ScheduleRun,
    ThroughputRow,
    TotalsRow,
    WasteRow,
    WorkerTimeRow,
)

By = tuple[Dimension, ...]
Query = Callable[[Reports, ReportFilter, tuple[Dimension | Bucket, ...]], Sequence[Any]]

TIMES = frozenset({"since", "until"})
FILTERS = TIMES | {"queue", "model", "tenant", "batch"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of report. Its query gives rows of `row_type` for each group."""

    name: str
    title: str
    query: Query
    row_type: type[Any]
    over_time: str | None  # the figure whose line over time stands beside each row
    keys: tuple[str, ...] = ()  # the fields that tell the rows of one group apart
    is_by_metric: bool = False  # one of them names a metric, which tells the unit of the others
    default_by: By = ()
    dimensions: frozenset[Dimension] = frozenset(Dimension)  # what its rows can be grouped by
    filters: frozenset[str] = FILTERS  # what of a filter its rows can tell
    finest_step_s: int = MINUTE  # the shortest time for which its figures are known


def _schedules(reports: Reports, chosen: ReportFilter, by: Sequence[Dimension | Bucket]) -> Sequence[ScheduleRun]:
    assert not by, "runs of schedules are in no groups"
    return reports.schedules(chosen)


SUMMARY = Kind("summary", "Summary", Reports.totals, TotalsRow, over_time="jobs")
THROUGHPUT = Kind(
    "throughput", "Throughput", Reports.throughput, ThroughputRow, over_time="jobs_done", default_by=(Dimension.HOUR,)
)
LATENCY = Kind("latency", "Latency", Reports.latency, LatencyRow, over_time="p50", keys=("metric",), is_by_metric=True)
MEMORY = Kind("memory", "Memory", Reports.memory, MemoryRow, over_time="max", keys=("metric",), is_by_metric=True)
SAVINGS = Kind("savings", "KV memory saved", Reports.savings, SavingsRow, over_time="saved_against_limit_share")
PREFIX = Kind(
    "prefix",
    "Prefix cache",
    Reports.prefix,
    PrefixRow,
    over_time="hit_rate",
    default_by=(Dimension.TENANT, Dimension.MODEL),
)
FAILURES = Kind("failures", "Failures", Reports.failures, FailureRow, over_time="jobs", keys=("error_code", "state"))
WASTE = Kind("waste", "Waste", Reports.waste, WasteRow, over_time="wasted_tokens", keys=("reason",))
COST = Kind(
    "cost",
    "Cost",
    Reports.costs,
    CostsRow,
    over_time="engine_seconds",
    keys=("currency",),
    default_by=(Dimension.TENANT,),
)
WORKERS = Kind(
    "workers",
    "Workers' time",
    Reports.worker_time,
    WorkerTimeRow,
    over_time="engine_seconds",
    keys=("currency",),
    dimensions=frozenset({Dimension.MODEL, Dimension.HOUR, Dimension.DAY}),
    filters=TIMES | {"model"},
    finest_step_s=HOUR,
)
SCHEDULES = Kind(
    "schedules", "Schedules", _schedules, ScheduleRun, over_time=None, dimensions=frozenset(), filters=TIMES
)


def unknown_to(kind: Kind, chosen: ReportFilter) -> tuple[str, ...]:
    """Return what was asked of a filter that a kind of report cannot tell."""
    return tuple(name for name in sorted(FILTERS - kind.filters) if getattr(chosen, name) is not None)
