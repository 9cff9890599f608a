"""The page's sections: which charts and tables each topic has."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from markupsafe import Markup

from worker.reports.catalogue import has_trend, report_table, timeline_of, trended
from worker.reports.html.charts import Chart, Series, line_chart, stacked_bars
from worker.reports.html.page import Section
from worker.reports.html.rows import Ranked, ranking
from worker.reports.kinds import (
    COST,
    FAILURES,
    LATENCY,
    MEMORY,
    PREFIX,
    SAVINGS,
    SCHEDULES,
    SUMMARY,
    THROUGHPUT,
    WASTE,
    WORKERS,
    By,
    Kind,
)
from worker.reports.timeline import Timeline
from worker.reports.units import Unit, readable, unit_of
from worker.sql.reporting import Bucket, Dimension, ReportFilter, Reports, TotalsRow, WorkerTimeRow

MAX_RANKED = 12
LATENCY_CHARTS = {
    "ttft_ms": "Time to first token, from the claim",
    "e2e_ms": "End to end, from submission on",
    "queue_ms": "Waiting in the queue",
    "itl_mean_ms": "Between two tokens",
}
MEMORY_CHARTS = {"kv_bytes_peak": "KV cache held by a job at its peak", "memory_peak_bytes": "Memory of the worker"}
PERCENTILES = (("p50", "blue"), ("p90", "violet"), ("p99", "amber"))
MEMORY_LINES = (("p50", "blue"), ("p99", "violet"), ("max", "amber"))
COMPUTED = "computed"  # prompt tokens that the cache did not hold
JOB_PARTS = (
    ("jobs_done", "done", "blue"),
    ("jobs_failed", "failed", "red"),
    ("jobs_dead", "dead", "violet"),
    ("jobs_cancelled", "cancelled", "slate"),
)
TOKEN_PARTS = (
    ("prefix_hit_tokens", "prompt, from the cache", "teal"),
    (COMPUTED, "prompt, computed", "sky"),
    ("completion_tokens", "output", "violet"),
)
CODE_STYLES = ("red", "amber", "violet", "blue", "teal")
OTHERS = "others"
KV_PARTS = (
    ("kv_held_share", "held by requests", "blue"),
    ("kv_cached_share", "kept for the prefix cache", "teal"),
)
WORKER_TIMES = {
    "engine_seconds": "working on jobs",
    "idle_seconds": "idle",
    "loading_seconds": "loading the model",
    "overhead_seconds": "overhead",
}


@dataclass(frozen=True, slots=True)
class Source:
    """What a section's charts are drawn from."""

    reports: Reports
    chosen: ReportFilter
    timeline: Timeline
    steps: Sequence[Any]  # the kind's rows for each step of time; their group is the step's beginning

    def grouped(self, kind: Kind, *by: Dimension | Bucket) -> Sequence[Any]:
        """Return rows of a kind for all of the time."""
        return kind.query(self.reports, self.chosen, by)


def section_of(kind: Kind, reports: Reports, chosen: ReportFilter, by: By) -> Section:
    """Return the section of one kind of report: its charts, and its table by the given groups."""
    builder = _BUILDERS[kind.name]
    table = report_table(kind, reports, chosen, by)
    timeline = timeline_of(kind, reports, chosen)
    if kind.is_by_metric and not any(table.column("count")):
        table = replace(table, rows=())
    charts: tuple[Markup, ...] = ()
    if timeline is not None and table.rows:
        step = Bucket(timeline.step_s)
        steps = kind.query(reports, chosen, (step,)) if kind.over_time is not None else ()
        source = Source(reports, chosen, timeline, steps)
        charts = builder.charts(source)
        if has_trend(table, kind, by):
            table = trended(table, kind, by, timeline, source.grouped(kind, *by, step) if by else source.steps)
    return Section(
        id=kind.name,
        title=kind.title,
        lead=builder.lead,
        empty=builder.empty,
        charts=charts,
        tables=(table.for_people(),) if table.rows else (),
    )


def _throughput_charts(source: Source) -> tuple[Markup, ...]:
    rows = source.grouped(SUMMARY, Bucket(source.timeline.step_s))

    def chart(title: str, parts: Sequence[tuple[str, str, str]]) -> Markup:
        series = tuple(
            Series(name, style, source.timeline.spread({row.group[0]: _throughput_figure(row, field) for row in rows}))
            for field, name, style in parts
        )
        return stacked_bars(Chart(f"{title} per {source.timeline.step}", Unit.COUNT, source.timeline, series))

    return chart("Jobs", JOB_PARTS), chart("Tokens", TOKEN_PARTS)


def _throughput_figure(row: TotalsRow, field: str) -> float:
    if field == COMPUTED:
        return float(row.prompt_tokens - row.prefix_hit_tokens)
    return float(getattr(row, field))


def _latency_charts(source: Source) -> tuple[Markup, ...]:
    return _percentile_charts(source, LATENCY, LATENCY_CHARTS, PERCENTILES)


def _memory_charts(source: Source) -> tuple[Markup, ...]:
    return _percentile_charts(source, MEMORY, MEMORY_CHARTS, MEMORY_LINES)


def _percentile_charts(
    source: Source, kind: Kind, charts: Mapping[str, str], lines: Sequence[tuple[str, str]]
) -> tuple[Markup, ...]:

    def chart(metric: str, title: str) -> Markup:
        steps = [row for row in source.steps if row.metric == metric]
        series = tuple(
            Series(name, style, source.timeline.spread({row.group[0]: getattr(row, name) for row in steps}))
            for name, style in lines
        )
        return line_chart(Chart(title, unit_of(metric), source.timeline, series))

    return tuple(chart(metric, title) for metric, title in charts.items())


def _prefix_charts(source: Source) -> tuple[Markup, ...]:
    shares = {row.group[0]: row.hit_rate for row in source.steps}
    series = (Series("prompt tokens from the cache", "teal", source.timeline.spread(shares)),)
    return (
        line_chart(Chart("Share of prompt tokens that the cache held", Unit.SHARE, source.timeline, series)),
        _ranking("Tokens not computed again", source.grouped(PREFIX, Dimension.TENANT), "prefix_hit_tokens", "teal"),
    )


def _failure_charts(source: Source) -> tuple[Markup, ...]:
    codes: Counter[str] = Counter()
    for row in source.grouped(FAILURES):
        codes[row.error_code] += row.jobs
    styles = {code: style for (code, _), style in zip(codes.most_common(), CODE_STYLES, strict=False)}
    steps: dict[str, Counter[datetime]] = {code: Counter() for code in (*styles, OTHERS)}
    for row in source.steps:
        steps[row.error_code if row.error_code in styles else OTHERS][row.group[0]] += row.jobs
    series = tuple(
        Series(code, styles.get(code, "slate"), source.timeline.spread(values))
        for code, values in steps.items()
        if values
    )
    bars = [
        Ranked(code, jobs, readable(jobs / codes.total(), Unit.SHARE)) for code, jobs in codes.most_common(MAX_RANKED)
    ]
    return (
        stacked_bars(Chart(f"Failed jobs per {source.timeline.step}", Unit.COUNT, source.timeline, series)),
        ranking("Failed jobs by code", Unit.COUNT, bars, "red"),
    )


def _waste_charts(source: Source) -> tuple[Markup, ...]:
    bars = [
        Ranked(row.reason.replace("_", " "), row.wasted_tokens or 0, f"{row.attempts:,} attempts")
        for row in source.grouped(WASTE)
    ]
    return (ranking("Tokens computed in vain", Unit.COUNT, bars, "amber"),)


def _cost_charts(source: Source) -> tuple[Markup, ...]:
    charts = []
    for dimension in (Dimension.TENANT, Dimension.BATCH):
        rows = source.grouped(COST, dimension)
        is_priced = any(row.cost is not None for row in rows)
        field, title = ("cost", "Cost") if is_priced else ("engine_seconds", "Engine time")
        charts.append(_ranking(f"{title} by {dimension.value}", rows, field, "violet"))
    return tuple(charts)


def _savings_charts(source: Source) -> tuple[Markup, ...]:
    lines = (
        ("saved_against_limit_share", "by paging", "teal"),
        ("saved_by_sharing_share", "by sharing", "blue"),
    )
    series = tuple(
        Series(name, style, source.timeline.spread({row.group[0]: getattr(row, field) for row in source.steps}))
        for field, name, style in lines
    )
    return (line_chart(Chart("Share of KV memory saved", Unit.SHARE, source.timeline, series)),)


def _worker_charts(source: Source) -> tuple[Markup, ...]:
    rows = source.grouped(WORKERS)
    bars = [Ranked(name, sum(getattr(row, field) for row in rows), "") for field, name in WORKER_TIMES.items()]
    series = tuple(
        Series(name, style, source.timeline.spread(_cache_shares(source.steps, field)))
        for field, name, style in KV_PARTS
    )
    return (
        ranking("Where the workers' time went", Unit.SECONDS, bars, "teal"),
        line_chart(Chart("How full the KV cache was", Unit.SHARE, source.timeline, series)),
    )


def _cache_shares(steps: Sequence[WorkerTimeRow], field: str) -> dict[datetime, float | None]:
    """Return a share of the KV cache for each step; workers with prices in several currencies count by their time."""
    weighed: defaultdict[datetime, list[tuple[float, float]]] = defaultdict(list)
    for row in steps:
        step, share = row.group[0], getattr(row, field)
        assert isinstance(step, datetime), "the rows are grouped by steps of time"
        if share is not None:
            weighed[step].append((share, row.wall_seconds))
    return {
        step: sum(share * seconds for share, seconds in pairs) / sum(seconds for _, seconds in pairs)
        for step, pairs in weighed.items()
    }


def _no_charts(source: Source) -> tuple[Markup, ...]:
    return ()


def _ranking(title: str, rows: Sequence[Any], field: str, style: str) -> Markup:
    """Return the largest groups as bars; a cost tells its currency, other figures the number of jobs."""
    known = [row for row in rows if getattr(row, field) is not None]
    bars = [
        Ranked(
            name=str(row.group[0]) if row.group[0] is not None else "none",
            value=float(getattr(row, field)),
            aside=row.currency if field == "cost" and row.currency else f"{row.jobs:,} jobs",
        )
        for row in sorted(known, key=lambda row: -getattr(row, field))[:MAX_RANKED]
    ]
    return ranking(title, unit_of(field), bars, style)


@dataclass(frozen=True, slots=True)
class _Builder:
    charts: Callable[[Source], tuple[Markup, ...]]
    lead: str
    empty: str


_BUILDERS = {
    SUMMARY.name: _Builder(_throughput_charts, "What became of the jobs.", "No jobs."),
    THROUGHPUT.name: _Builder(_throughput_charts, "What ended when.", "No job has ended."),
    LATENCY.name: _Builder(
        _latency_charts, "Of the jobs that are done. Half of them took no longer than p50.", "No job is done."
    ),
    MEMORY.name: _Builder(
        _memory_charts, "What jobs held of the KV cache, and workers of the machine.", "No job has figures."
    ),
    PREFIX.name: _Builder(
        _prefix_charts, "Prompt tokens that the prefix cache held were not computed again.", "No job has a result."
    ),
    FAILURES.name: _Builder(
        _failure_charts, "Jobs that failed or are dead, by the code of their error.", "No job has failed."
    ),
    WASTE.name: _Builder(
        _waste_charts, "Tokens computed twice, or for an attempt that left no result.", "Nothing was computed in vain."
    ),
    SAVINGS.name: _Builder(
        _savings_charts,
        "Blocks times seconds that jobs held. Paging saves against reserving room for max_tokens from the start, "
        "sharing against every job having its blocks to itself.",
        "No job has figures.",
    ),
    WORKERS.name: _Builder(
        _worker_charts, "Where the workers' time went, idle time included, in whole hours.", "No worker has run."
    ),
    SCHEDULES.name: _Builder(_no_charts, "What came of each slot of a schedule.", "No schedule has run."),
    COST.name: _Builder(
        _cost_charts,
        "The engine's time that jobs are charged with, at their workers' price.",
        "No engine time is known.",
    ),
}
