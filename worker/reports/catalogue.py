"""Each report as a table."""

import dataclasses
from collections.abc import Sequence

from worker.reports.tables import Column, ReportTable, columns_of, rows_of, title_of
from worker.reports.units import Unit, unit_of
from worker.sql.reporting import Dimension, LatencyRow, MemoryRow, ReportFilter, Reports, SummaryReport


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


def prefix_table(reports: Reports, chosen: ReportFilter, by: Sequence[Dimension]) -> ReportTable:
    """Return a row for each group of jobs with results."""
    figures = ("jobs", "jobs_with_hit", "prompt_tokens", "prefix_hit_tokens", "hit_rate")
    columns = (
        *(Column(dimension.value, dimension.value, Unit.TEXT) for dimension in by),
        *(Column(name, title_of(name), unit_of(name), is_whole=name != "hit_rate") for name in figures),
    )
    rows = tuple((*row.group, *(getattr(row, name) for name in figures)) for row in reports.prefix(chosen, by))
    return ReportTable("prefix", "Prefix cache", columns, rows)
