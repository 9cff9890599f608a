"""Two runs side by side: what of the figures differs, how much, and how many jobs stand behind each."""

from dataclasses import asdict, dataclass
from enum import Enum, StrEnum

from worker.reports.tables import ReportTable, columns_of, rows_of
from worker.sql.reporting import CostsRow, LatencyRow, ReportFilter, Reports, TotalsRow

FEW_JOBS = 10  # below it, on either side, a difference may be chance
SMALL_CHANGE, LARGE_CHANGE = 0.05, 0.25
LATENCIES = ("queue_ms", "ttft_ms", "itl_mean_ms", "e2e_ms")


class Better(Enum):
    """Which way a figure should go."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Verdict(StrEnum):
    """What a difference says about B."""

    SAME = "same"  # within 5%
    BETTER = "better"
    MUCH_BETTER = "much better"  # by more than 25%
    WORSE = "worse"
    MUCH_WORSE = "much worse"
    DIFFERENT = "different"  # neither is better
    FEW_JOBS = "few jobs"  # it differs, but fewer than ten jobs tell so
    UNKNOWN = "unknown"  # one side does not have it


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: its name for people, and its jobs."""

    name: str
    chosen: ReportFilter


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One figure of both runs. `change` is B's difference in parts of A; the jobs are those that have the figure."""

    metric: str
    a: float | None
    b: float | None
    difference: float | None
    change: float | None
    verdict: str
    jobs_a: int
    jobs_b: int


@dataclass(frozen=True, slots=True)
class _Figure:
    metric: str
    value: float | None
    jobs: int
    better: Better


def compare(reports: Reports, a: Side, b: Side) -> tuple[ComparisonRow, ...]:
    """Return a row for each figure, whether it differs or not."""
    return tuple(_row(one, other) for one, other in zip(_figures(reports, a), _figures(reports, b), strict=True))


def comparison_table(rows: tuple[ComparisonRow, ...], a: Side, b: Side) -> ReportTable:
    """Return the comparison as a table."""
    columns = columns_of(ComparisonRow, by_metric=True)
    return ReportTable("compare", f"A: {a.name}, B: {b.name}", columns, rows_of(rows, columns))


def comparison_document(rows: tuple[ComparisonRow, ...], a: Side, b: Side) -> dict[str, object]:
    """Return the comparison as a JSON document."""
    return {"a": asdict(a), "b": asdict(b), "figures": rows}


def _figures(reports: Reports, side: Side) -> list[_Figure]:
    (totals,) = reports.totals(side.chosen)
    latencies = {row.metric: row for row in reports.latency(side.chosen)}
    memory = {row.metric: row for row in reports.memory(side.chosen)}
    return [
        *_of_totals(totals),
        *(figure for metric in LATENCIES for figure in _of_latency(latencies[metric])),
        _Figure("kv_bytes_peak", memory["kv_bytes_peak"].p99, memory["kv_bytes_peak"].count, Better.LOWER),
        *_of_costs(reports.costs(side.chosen)),
    ]


def _of_totals(totals: TotalsRow) -> list[_Figure]:
    jobs, done = totals.jobs, totals.jobs_done
    ended = done + totals.jobs_failed + totals.jobs_dead + totals.jobs_cancelled
    first, last = totals.first_claim_at, totals.last_end_at
    span_s = (last - first).total_seconds() if first is not None and last is not None else None
    return [
        _Figure("jobs", jobs, jobs, Better.NEITHER),
        _Figure("done_share", _ratio(done, ended), ended, Better.HIGHER),
        _Figure("retried_share", _ratio(totals.jobs_with_retries, jobs), jobs, Better.LOWER),
        _Figure("prompt_tokens_per_job", _ratio(totals.prompt_tokens, done), done, Better.NEITHER),
        _Figure("output_tokens_per_job", _ratio(totals.completion_tokens, done), done, Better.NEITHER),
        _Figure("prefix_hit_share", totals.prefix_hit_share, done, Better.HIGHER),
        _Figure("span_s", span_s, ended, Better.NEITHER),
        _Figure("output_tokens_per_s", _ratio(totals.completion_tokens, span_s), done, Better.HIGHER),
        _Figure("jobs_done_per_s", _ratio(done, span_s), done, Better.HIGHER),
    ]


def _of_latency(row: LatencyRow) -> list[_Figure]:
    name = row.metric.removesuffix("_ms")
    return [
        _Figure(f"{name}_p50_ms", row.p50, row.count, Better.LOWER),
        _Figure(f"{name}_p99_ms", row.p99, row.count, Better.LOWER),
    ]


def _of_costs(rows: tuple[CostsRow, ...]) -> list[_Figure]:
    """Engine time per job, and money where all of it is in one currency."""
    jobs = sum(row.jobs for row in rows)
    cost = rows[0].cost if len(rows) == 1 else None
    return [
        _Figure("engine_per_job_s", _ratio(sum(row.engine_seconds for row in rows), jobs), jobs, Better.LOWER),
        _Figure("cost_per_job", None if cost is None else _ratio(cost, jobs), jobs, Better.LOWER),
    ]


def _row(a: _Figure, b: _Figure) -> ComparisonRow:
    difference = b.value - a.value if a.value is not None and b.value is not None else None
    change = _ratio(difference, abs(a.value)) if difference is not None and a.value is not None else None
    return ComparisonRow(
        metric=a.metric,
        a=a.value,
        b=b.value,
        difference=difference,
        change=change,
        verdict=_verdict(a, b, difference, change).value,
        jobs_a=a.jobs,
        jobs_b=b.jobs,
    )


def _verdict(a: _Figure, b: _Figure, difference: float | None, change: float | None) -> Verdict:
    if difference is None:
        return Verdict.UNKNOWN
    if difference == 0 or (change is not None and abs(change) <= SMALL_CHANGE):
        return Verdict.SAME
    if a.better is Better.NEITHER:
        return Verdict.DIFFERENT
    if min(a.jobs, b.jobs) < FEW_JOBS:
        return Verdict.FEW_JOBS
    is_large = change is None or abs(change) > LARGE_CHANGE  # from nothing to something is large
    if (difference > 0) is (a.better is Better.HIGHER):
        return Verdict.MUCH_BETTER if is_large else Verdict.BETTER
    return Verdict.MUCH_WORSE if is_large else Verdict.WORSE


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
