"""Histograms of figures, by the hour, the day and the week, so that percentiles over months read few rows.

Days and weeks are there that are rolled up whole, hours of the last days only: those of a day are a fraction of its
jobs, and there are as many as in two months by the day.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Connection, Label, and_, cast, delete, func, insert, literal, or_, select

from worker.sql.rollups.expressions import day_of, hour_of
from worker.sql.rollups.periods import DAY, HOUR, WEEK, day_start, floor_to, starts_in
from worker.sql.rollups.sources import HISTOGRAMS, Conditions
from worker.sql.tables import HistogramRow, JobRow, RolledHourRow

HOURLY_FOR = timedelta(days=8)  # histograms by the hour are kept for so long
_KEYS = (HistogramRow.queue, HistogramRow.model, HistogramRow.tenant, HistogramRow.metric, HistogramRow.bucket)


def seconds_of(period: timedelta) -> int:
    """Return the length of a period as the histograms have it."""
    return int(period.total_seconds())


def hourly_since(connection: Connection) -> datetime | None:
    """Return from when on histograms are by the hour, up to the last hour that is rolled up; None where none are."""
    return connection.scalar(select(func.min(HistogramRow.starts_at)).where(HistogramRow.seconds == seconds_of(HOUR)))


def count_histograms(
    connection: Connection, start: datetime, end: datetime, ended: Conditions, by_day_before: datetime
) -> None:
    """Replace the histograms of the hours from `start` to `end`, which are rolled up otherwise, and of their days and
    weeks, in the caller's transaction. `ended` is the condition of their jobs.

    Whole days before `by_day_before` have no histograms by the hour afterwards. A span of more than one day begins and
    ends at midnight, UTC.
    """
    _delete(connection, start, end)
    if start < by_day_before and start == day_start(start) and end == day_start(end):
        _insert(connection, DAY, day_of(JobRow.ended_at).label("starts_at"), ended)
    else:
        _insert(connection, HOUR, hour_of(JobRow.ended_at).label("starts_at"), ended)
        _add_up(connection, HOUR, start, end, DAY)
    _add_up(connection, DAY, start, end, WEEK)
    connection.execute(
        delete(HistogramRow).where(
            HistogramRow.seconds == seconds_of(HOUR), HistogramRow.starts_at < min(by_day_before, day_start(end))
        )
    )


def _delete(connection: Connection, start: datetime, end: datetime) -> None:
    of_span = [
        and_(
            HistogramRow.seconds == seconds_of(period),
            HistogramRow.starts_at >= floor_to(start, period),
            HistogramRow.starts_at < end,
        )
        for period in (HOUR, DAY, WEEK)
    ]
    connection.execute(delete(HistogramRow).where(or_(*of_span)))


def _insert(connection: Connection, period: timedelta, starts_at: Label[datetime], ended: Conditions) -> None:
    groups: list[Label[Any]] = [
        literal(seconds_of(period), BigInteger).label("seconds"),
        starts_at,
        *(column.label(name) for name, column in _DIMENSIONS.items()),
    ]
    counted = HISTOGRAMS.from_rows(groups, ended)
    names = [column.name for column in counted.selected_columns]
    connection.execute(insert(HistogramRow).from_select(names, counted))


_DIMENSIONS = {"queue": JobRow.queue, "model": JobRow.model, "tenant": JobRow.tenant}


def _add_up(connection: Connection, part: timedelta, start: datetime, end: datetime, whole: timedelta) -> None:
    """Add up the parts of each whole period that has some of the span, and all of whose hours are rolled up."""
    for begin in starts_in(start, end, whole):
        hours = select(func.count()).where(RolledHourRow.hour >= begin, RolledHourRow.hour < begin + whole)
        if connection.scalar(hours) != whole // HOUR:
            continue
        summed = (
            select(
                literal(seconds_of(whole), BigInteger),
                literal(begin, HistogramRow.starts_at.type),
                *_KEYS,
                cast(func.sum(HistogramRow.jobs), BigInteger),
            )
            .where(
                HistogramRow.seconds == seconds_of(part),
                HistogramRow.starts_at >= begin,
                HistogramRow.starts_at < begin + whole,
            )
            .group_by(*_KEYS)
        )
        names = ["seconds", "starts_at", *(key.key for key in _KEYS), "jobs"]
        connection.execute(insert(HistogramRow).from_select(names, summed))
