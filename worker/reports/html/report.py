"""Whole pages: everything about the chosen jobs, or one report on them."""

from datetime import datetime

from worker.reports.comparing import ComparisonRow, Side
from worker.reports.html.comparison import comparison_section
from worker.reports.html.jobs import jobs_section
from worker.reports.html.page import Page, Tile
from worker.reports.html.sections import section_of
from worker.reports.kinds import (
    COST,
    FAILURES,
    LATENCY,
    MEMORY,
    PREFIX,
    SAVINGS,
    SCHEDULES,
    THROUGHPUT,
    WASTE,
    WORKERS,
    By,
    Kind,
    unknown_to,
)
from worker.reports.timeline import timeline_over
from worker.reports.units import Unit, compact, readable
from worker.sql.reporting import Bucket, CostsRow, Dimension, ReportFilter, Reports, SlowJob, TotalsRow
from worker.sql.reporting.asked_once import AskedOnce

SLOWEST = 25  # jobs
CONTENTS: tuple[tuple[Kind, By], ...] = (
    (THROUGHPUT, (Dimension.QUEUE,)),
    (LATENCY, ()),
    (MEMORY, ()),
    (SAVINGS, ()),
    (PREFIX, (Dimension.TENANT, Dimension.MODEL)),
    (FAILURES, ()),
    (WASTE, ()),
    (COST, (Dimension.BATCH,)),
    (WORKERS, (Dimension.MODEL,)),
    (SCHEDULES, ()),
)
AFTER_LATENCY = 2


def whole_page(reports: Reports, chosen: ReportFilter, made_at: datetime) -> Page:
    """Return everything about the chosen jobs."""
    reports = AskedOnce(reports, _step_of)
    told = [(kind, by) for kind, by in CONTENTS if not unknown_to(kind, chosen)]
    sections = [section_of(kind, reports, chosen, by) for kind, by in told]
    sections.insert(AFTER_LATENCY, jobs_section("Slowest jobs", reports.slowest(chosen, SLOWEST)))
    return Page("Pagemill report", words_of(chosen), made_at, _tiles(reports, chosen), tuple(sections))


def kind_page(kind: Kind, reports: Reports, chosen: ReportFilter, by: By, made_at: datetime) -> Page:
    """Return one report on the chosen jobs."""
    reports = AskedOnce(reports, _step_of)
    section = section_of(kind, reports, chosen, by)
    return Page(f"Pagemill: {kind.title.lower()}", words_of(chosen), made_at, _tiles(reports, chosen), (section,))


def job_page(job: SlowJob, made_at: datetime) -> Page:
    """Return one job's phases."""
    return Page(f"Pagemill: job {job.job_id}", (), made_at, (), (jobs_section("Phases", (job,)),))


def comparison_page(rows: tuple[ComparisonRow, ...], a: Side, b: Side, made_at: datetime) -> Page:
    """Return two runs side by side."""
    section = comparison_section(rows, a, b)
    return Page("Pagemill: two runs", (f"A: {a.name}", f"B: {b.name}"), made_at, (), (section,))


def words_of(chosen: ReportFilter) -> tuple[str, ...]:
    """Return which jobs were chosen, in words."""
    times = ((chosen.since, "ended since"), (chosen.until, "ended before"))
    names = ("queue", "model", "tenant", "batch")
    return (
        *(f"{text} {readable(moment, Unit.MOMENT)} UTC" for moment, text in times if moment is not None),
        *(f"{name} {value}" for name in names if (value := getattr(chosen, name)) is not None),
    ) or ("all jobs",)


def _step_of(first: datetime, last: datetime) -> Bucket:
    return Bucket(timeline_over(first, last).step_s)


def _tiles(reports: Reports, chosen: ReportFilter) -> tuple[Tile, ...]:
    (totals,) = reports.totals(chosen)
    if totals.jobs == 0:
        return ()
    latencies = {row.metric: row for row in reports.latency(chosen, ())}
    failed = totals.jobs_failed + totals.jobs_dead
    ended = totals.jobs_done + failed + totals.jobs_cancelled
    share = f"{readable(failed / ended, Unit.SHARE)} of those that ended" if ended else "none has ended"
    return (
        Tile("Jobs done", f"{totals.jobs_done:,}", f"of {totals.jobs:,}"),
        Tile("Failed", f"{failed:,}", share, "red" if failed else None),
        Tile("Output tokens", compact(totals.completion_tokens, Unit.COUNT), _rate(totals)),
        *(
            Tile(title, readable(row.p50, Unit.MILLISECONDS), f"p99 {readable(row.p99, Unit.MILLISECONDS)}")
            for metric, title in (("ttft_ms", "First token, p50"), ("e2e_ms", "End to end, p50"))
            if (row := latencies.get(metric)) is not None and row.count
        ),
        Tile(
            "Prefix cache",
            readable(totals.prefix_hit_share, Unit.SHARE),
            f"of {compact(totals.prompt_tokens, Unit.COUNT)} prompt tokens",
        ),
        *(
            Tile("Cost", f"{readable(row.cost, Unit.MONEY)} {row.currency or ''}", _engine_time(row))
            for row in reports.costs(chosen)
            if row.cost is not None
        ),
    )


def _engine_time(costs: CostsRow) -> str:
    return f"{readable(costs.engine_seconds, Unit.SECONDS)} of engine time"


def _rate(totals: TotalsRow) -> str:
    if totals.first_claim_at is None or totals.last_end_at is None:
        return ""
    seconds = (totals.last_end_at - totals.first_claim_at).total_seconds()
    return readable(totals.completion_tokens / seconds, Unit.RATE) if seconds > 0 else ""
