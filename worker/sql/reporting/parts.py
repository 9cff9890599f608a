"""Which part of an answer comes from roll-ups and which from the rows of jobs.

Roll-ups have whole hours: by queue, model and tenant; sums by batch as well; latencies and memory by batch alone. The
edges of a time that is asked for, what ended since the last roll-up, and periods finer than an hour come from the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from worker.sql.reporting.filters import (
    Dimension,
    Grouping,
    ReportFilter,
    asked_columns,
    finest_period,
    group_labels,
)
from worker.sql.rollups.expressions import SECONDS_PER_HOUR
from worker.sql.rollups.histograms import hourly_since, seconds_of
from worker.sql.rollups.periods import DAY, HOUR, WEEK, ceil_to, floor_to
from worker.sql.rollups.rolling import rolled_span
from worker.sql.rollups.sources import HISTOGRAMS, Conditions, Source
from worker.sql.tables import (
    HistogramRow,
    HourlyBatchCostsRow,
    HourlyBatchFailuresRow,
    HourlyBatchFigureRow,
    HourlyBatchTotalsRow,
    HourlyBatchWasteRow,
    JobRow,
    RolledHourRow,
)

# What tells whether an hour that is rolled up is in a table: workers of earlier versions write only the others.
_HAS = {
    HistogramRow: RolledHourRow.has_histograms,
    HourlyBatchFigureRow: RolledHourRow.has_batch_figures,
    HourlyBatchTotalsRow: RolledHourRow.has_batches,
    HourlyBatchFailuresRow: RolledHourRow.has_batches,
    HourlyBatchWasteRow: RolledHourRow.has_batches,
    HourlyBatchCostsRow: RolledHourRow.has_batches,
}

Span = tuple[datetime | None, datetime | None]  # from the first, up to and without the second; None is without an end


@dataclass(frozen=True, slots=True)
class RolledSpan:
    """Time that a roll-up has, from periods of one length."""

    begin: datetime
    end: datetime
    period: timedelta


@dataclass(frozen=True, slots=True)
class Parts:
    """The time that a filter asks for, in parts by where the answer comes from. The rolled ones follow each other."""

    rolled: Sequence[RolledSpan]
    rows: Sequence[Span]


def divide(connection: Connection, source: Source, chosen: ReportFilter, by: Grouping) -> Parts:
    """Return as much as possible from roll-ups by the hour."""
    span = _usable_span(connection, source, chosen, by)
    return only_rows(chosen) if span is None else _parts(chosen, [RolledSpan(*span, HOUR)])


def divide_histograms(connection: Connection, chosen: ReportFilter, by: Grouping) -> Parts:
    """Return as much as possible from histograms, and of those the longest: weeks, days, the hours of the last days."""
    span = _usable_span(connection, HISTOGRAMS, chosen, by)
    if span is None:
        return only_rows(chosen)
    first, last = span
    hours = RolledSpan(min(hourly_since(connection) or last, last), last, HOUR)
    wanted = timedelta(seconds=finest_period(by) or WEEK.total_seconds())
    has = (RolledSpan(first, last, WEEK), RolledSpan(first, last, DAY), hours)
    return _parts(chosen, [of for of in has if not wanted % of.period])


def only_rows(chosen: ReportFilter) -> Parts:
    """Return all of it from the rows of jobs."""
    return Parts((), ((chosen.since, chosen.until),))


def is_purged(connection: Connection, parts: Parts) -> bool:
    """Tell whether rows are missing that the rolled part was counted from."""
    if not parts.rolled:
        return False
    begin, end = parts.rolled[0].begin, parts.rolled[-1].end
    final = select(func.count()).where(RolledHourRow.is_final, RolledHourRow.hour >= begin, RolledHourRow.hour < end)
    return bool(connection.scalar(final))


def statement(source: Source, parts: Parts, chosen: ReportFilter, by: Grouping) -> Select[Any]:
    """Return what counts `source` over all parts, with `group_0` and so on for what is grouped by."""
    groups = group_labels(by, JobRow.__table__.c, JobRow.ended_at)
    counted = [source.from_rows(groups, [*span_conditions(span), *job_conditions(chosen)]) for span in parts.rows]
    if asks_for_batches(chosen, by):
        source = source.by_batch() or source
    columns = source.table.__table__.c
    starts_at = columns["hour" if "hour" in columns else "starts_at"]
    asked = [columns[name] == value for name, value in chosen.dimensions.items()]
    if chosen.batch is not None and parts.rolled:
        asked.append(columns["batch_id"] == chosen.batch)
    for rolled in parts.rolled:
        conditions = [starts_at >= rolled.begin, starts_at < rolled.end, *asked]
        if "seconds" in columns:
            conditions.append(columns["seconds"] == seconds_of(rolled.period))
        counted.append(source.from_rollup(group_labels(by, columns, starts_at), conditions))
    return source.merged(counted)


def job_conditions(chosen: ReportFilter) -> Conditions:
    """Return the filter but for its times, over `JobRow`."""
    conditions = [JobRow.__table__.c[name] == value for name, value in chosen.dimensions.items()]
    return conditions if chosen.batch is None else [*conditions, JobRow.batch_id == chosen.batch]


def span_conditions(span: Span) -> Conditions:
    """Return the conditions of a job that ended within the span."""
    begin, end = span
    conditions: list[ColumnElement[bool]] = [JobRow.ended_at.is_not(None)]
    if begin is not None:
        conditions.append(JobRow.ended_at >= begin)
    if end is not None:
        conditions.append(JobRow.ended_at < end)
    return conditions


def _usable_span(
    connection: Connection, source: Source, chosen: ReportFilter, by: Grouping
) -> tuple[datetime, datetime] | None:
    """Return the time that is rolled up, None where roll-ups do not have what is asked for."""
    if (finest_period(by) or 0) % SECONDS_PER_HOUR:
        return None
    span = rolled_span(connection)
    if span is None:
        return None
    table = source.batch_table if asks_for_batches(chosen, by) else source.table
    if table is None or not asked_columns(chosen, by) <= set(table.__table__.c.keys()):
        return None
    has = _HAS.get(table)
    if has is None:
        return span
    first, last = span
    without = connection.scalar(select(func.max(RolledHourRow.hour)).where(~has))
    return (first if without is None else without + HOUR), last


def asks_for_batches(chosen: ReportFilter, by: Grouping) -> bool:
    """Tell whether an answer needs to know of batches."""
    return chosen.batch is not None or Dimension.BATCH in by


def _parts(chosen: ReportFilter, has: Sequence[RolledSpan]) -> Parts:
    """Return the parts of the time that is asked for; `has` is what there is, the longest periods first."""
    rolled = _cover(chosen.since, chosen.until, has)
    if not rolled:
        return only_rows(chosen)
    begin, end = rolled[0].begin, rolled[-1].end
    rows: list[Span] = []
    if chosen.since is None or chosen.since < begin:
        rows.append((chosen.since, begin))
    if chosen.until is None or chosen.until > end:
        rows.append((end, chosen.until))
    return Parts(rolled, rows)


def _cover(since: datetime | None, until: datetime | None, has: Sequence[RolledSpan]) -> list[RolledSpan]:
    """Return spans of whole periods, one behind the other, which have as much of a time as there is."""
    if not has:
        return []
    longest, *shorter = has
    begin = ceil_to(max(since or longest.begin, longest.begin), longest.period)
    end = floor_to(min(until or longest.end, longest.end), longest.period)
    if begin >= end:
        return _cover(since, until, shorter)
    return [*_cover(since, begin, shorter), RolledSpan(begin, end, longest.period), *_cover(end, until, shorter)]
