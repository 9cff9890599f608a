"""Each report as a table."""

import dataclasses

from worker.reports.tables import Column, ReportTable, columns_of, rows_of, title_of
from worker.reports.units import Unit, unit_of
from worker.sql.reporting import LatencyRow, MemoryRow, PrefixGrouping, ReportFilter, Reports, SummaryReport


def summary_table(summary: SummaryReport) -> ReportTable:
    """Return what became of the jobs, as one row."""
    states = {f"jobs_{state.value}": count for state, count in summary.jobs_by_state.items()}
    figures = {
        field.name: getattr(summary, field.name)
        for field in dataclasses.fields(summary)
        if field.name not in ("jobs_by_state", "failures_by_error_code")
    }
    row = {**states, **figures}
    columns = tuple(
        Column(name, title_of(name), unit_of(name), is_whole=isinstance(value, int)) for name, value in row.items()
    )
    return ReportTable("summary", "Summary", columns, (tuple(row.values()),), is_record=True)


def latency_table(reports: Reports, chosen: ReportFilter) -> ReportTable:
    """Return a row for each latency of the jobs that are done, in the order of a job's life."""
    columns = columns_of(LatencyRow, by_metric=True)
    return ReportTable("latency", "Latency", columns, rows_of(reports.latency(chosen), columns))


def memory_table(reports: Reports, chosen: ReportFilter) -> ReportTable:
    """Return a row for each memory figure, of every job that has figures, however it ended."""
    columns = columns_of(MemoryRow, by_metric=True)
    return ReportTable("memory", "Memory", columns, rows_of(reports.memory(chosen), columns))


def prefix_table(reports: Reports, chosen: ReportFilter, grouping: PrefixGrouping) -> ReportTable:
    """Return a row for each group of jobs with results, the one with most prompt tokens first."""
    names = ("queue",) if grouping is PrefixGrouping.QUEUE else ("tenant", "model")
    figures = ("jobs", "jobs_with_hit", "prompt_tokens", "prefix_hit_tokens", "hit_rate")
    columns = (
        *(Column(name, name, Unit.TEXT) for name in names),
        *(Column(name, title_of(name), unit_of(name), is_whole=name != "hit_rate") for name in figures),
    )
    rows = tuple(
        (*row.group.values(), *(getattr(row, name) for name in figures)) for row in reports.prefix(chosen, grouping)
    )
    return ReportTable("prefix", "Prefix cache", columns, rows)
