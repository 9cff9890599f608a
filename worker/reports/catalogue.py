"""Each report as a table, with a line over time for each row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from worker.readable import format_digits
from worker.reports.kinds import SUMMARY, By, Kind
from worker.reports.tables import Column, ReportTable, Trend, Value, columns_of, rows_of, title_of
from worker.reports.timeline import Timeline, timeline_over
from worker.reports.units import Unit
from worker.sql.reporting import Bucket, Dimension, ReportFilter, Reports

IN_TIME = frozenset({Dimension.HOUR, Dimension.DAY})
MAX_LINES = 40  # rows with a line over time: more would be a query of many groups for what nobody looks at


def report_table(kind: Kind, reports: Reports, chosen: ReportFilter, by: By) -> ReportTable:
    """Return one report, as all formats have it."""
    columns = columns_of(kind.row_type, by_metric=kind.is_by_metric)
    rows = kind.query(reports, chosen, by)
    return ReportTable(
        name=kind.name,
        title=_title(kind, by),
        columns=(*(_group_column(dimension) for dimension in by), *columns),
        rows=rows_of(rows, columns),
        is_record=kind is SUMMARY and not by,
        notes=_notes(rows),
    )


def with_trend(table: ReportTable, kind: Kind, reports: Reports, chosen: ReportFilter, by: By) -> ReportTable:
    """Return the table with a line over time for each row, where time is not what its rows are about already."""
    timeline = timeline_of(kind, reports, chosen)
    if timeline is None or not has_trend(table, kind, by):
        return table
    return trended(table, kind, by, timeline, kind.query(reports, chosen, (*by, Bucket(timeline.step_s))))


def has_trend(table: ReportTable, kind: Kind, by: By) -> bool:
    """Return whether lines over time suit a table: it is not about time itself, and not too long."""
    return kind.over_time is not None and 0 < len(table.rows) <= MAX_LINES and IN_TIME.isdisjoint(by)


def trended(table: ReportTable, kind: Kind, by: By, timeline: Timeline, steps: Sequence[Any]) -> ReportTable:
    """Return the table with a line over time for each row; `steps` are the kind's rows by the same and by time."""
    assert kind.over_time is not None
    lines: dict[tuple[Value, ...], dict[Any, float]] = {}
    for row in steps:
        *group, moment = row.group
        value = getattr(row, kind.over_time)
        if value is not None:
            lines.setdefault((*group, *(getattr(row, key) for key in kind.keys)), {})[moment] = value
    names = [column.name for column in table.columns]
    keyed = [*range(len(by)), *(names.index(key) for key in kind.keys)]
    trend = Trend(
        figure=title_of(kind.over_time),
        step_s=timeline.step_s,
        lines=tuple(timeline.spread(lines.get(tuple(row[at] for at in keyed), {})) for row in table.rows),
    )
    return replace(table, trend=trend)


def timeline_of(kind: Kind, reports: Reports, chosen: ReportFilter) -> Timeline | None:
    """Return the time in which the chosen jobs ended, in even steps that suit the kind; None where none has."""
    span = reports.span(chosen)
    return None if span is None else timeline_over(*span, kind.finest_step_s)


def _group_column(dimension: Dimension) -> Column:
    is_time = dimension in IN_TIME
    return Column(
        name=dimension.value,
        title=f"{dimension.value} (UTC)" if is_time else dimension.value,
        unit=Unit.MOMENT if is_time else Unit.TEXT,
    )


def _title(kind: Kind, by: By) -> str:
    return f"{kind.title} by {' and '.join(dimension.value for dimension in by)}" if by else kind.title


def _notes(rows: Sequence[Any]) -> tuple[str, ...]:
    error = max((getattr(row, "relative_error", 0.0) for row in rows), default=0.0)
    return (f"Percentiles are within {format_digits(error * 100)}% of the exact ones.",) if error > 0 else ()
