"""Which part of an answer comes from roll-ups and which from the rows of jobs.

Roll-ups have whole hours, by queue, model and tenant. The edges of a time that is asked for, what ended since the last
roll-up, batches and periods finer than an hour come from the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from worker.sql.reporting.filters import Dimension, Grouping, ReportFilter, finest_period, group_labels
from worker.sql.rollups.expressions import SECONDS_PER_HOUR
from worker.sql.rollups.rolling import HOURLY_HISTOGRAMS, day_start, rolled_span
from worker.sql.rollups.sources import Conditions, Source
from worker.sql.tables import JobRow, RolledHourRow

Span = tuple[datetime | None, datetime | None]  # from the first, up to and without the second; None is without an end
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Parts:
    """The time that a filter asks for, in parts by where the answer comes from."""

    rolled: tuple[datetime, datetime] | None
    rows: Sequence[Span]


def divide(connection: Connection, chosen: ReportFilter, by: Grouping) -> Parts:
    """Return as much as possible from roll-ups by the hour."""
    span = _usable_span(connection, chosen, by)
    if span is None:
        return only_rows(chosen)
    first, last = span
    return _around(
        chosen, _ceil(max(chosen.since or first, first), HOUR), _floor(min(chosen.until or last, last), HOUR)
    )


def divide_histograms(connection: Connection, chosen: ReportFilter, by: Grouping) -> Parts:
    """Return as much as possible from histograms, which are by the day but for the last days."""
    span = _usable_span(connection, chosen, by)
    if span is None:
        return only_rows(chosen)
    first, last = span
    by_hour_from = day_start(last) - HOURLY_HISTOGRAMS
    begin, end = max(chosen.since or first, first), min(chosen.until or last, last)
    if (finest_period(by) or 0) % DAY.total_seconds():
        begin = max(begin, by_hour_from)
    elif begin > first and begin < by_hour_from:
        begin = _ceil(begin, DAY)
    if end < by_hour_from:
        end = _floor(end, DAY)
    return _around(chosen, _ceil(begin, HOUR), _floor(end, HOUR))


def only_rows(chosen: ReportFilter) -> Parts:
    """Return all of it from the rows of jobs."""
    return Parts(None, ((chosen.since, chosen.until),))


def is_purged(connection: Connection, parts: Parts) -> bool:
    """Tell whether rows are missing that the rolled part was counted from."""
    if parts.rolled is None:
        return False
    begin, end = parts.rolled
    final = select(func.count()).where(RolledHourRow.is_final, RolledHourRow.hour >= begin, RolledHourRow.hour < end)
    return bool(connection.scalar(final))


def statement(source: Source, parts: Parts, chosen: ReportFilter, by: Grouping) -> Select[Any]:
    """Return what counts `source` over all parts, with `group_0` and so on for what is grouped by."""
    groups = group_labels(by, JobRow.__table__.c, JobRow.ended_at)
    counted = [source.from_rows(groups, [*span_conditions(span), *job_conditions(chosen)]) for span in parts.rows]
    if parts.rolled is not None:
        columns = source.table.__table__.c
        starts_at = columns["hour" if "hour" in columns else "starts_at"]
        begin, end = parts.rolled
        asked = [columns[name] == value for name, value in chosen.dimensions.items()]
        groups = group_labels(by, columns, starts_at)
        counted.append(source.from_rollup(groups, [starts_at >= begin, starts_at < end, *asked]))
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


def _usable_span(connection: Connection, chosen: ReportFilter, by: Grouping) -> tuple[datetime, datetime] | None:
    """Return the time that is rolled up, None where roll-ups do not have what is asked for."""
    period = finest_period(by)
    if chosen.batch is not None or Dimension.BATCH in by or (period is not None and period % SECONDS_PER_HOUR):
        return None
    return rolled_span(connection)


def _around(chosen: ReportFilter, begin: datetime, end: datetime) -> Parts:
    if begin >= end:
        return only_rows(chosen)
    rows: list[Span] = []
    if chosen.since is None or chosen.since < begin:
        rows.append((chosen.since, begin))
    if chosen.until is None or chosen.until > end:
        rows.append((end, chosen.until))
    return Parts((begin, end), rows)


def _ceil(moment: datetime, step: timedelta) -> datetime:
    floor = _floor(moment, step)
    return floor if floor == moment else floor + step


def _floor(moment: datetime, step: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return epoch + (moment - epoch) // step * step
