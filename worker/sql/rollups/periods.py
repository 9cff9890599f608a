"""Periods of time: hours, days and weeks, each beginning at a multiple of its length since 1970, UTC."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
WEEK = timedelta(weeks=1)  # from Thursday on, as 1970 began

_ZERO = datetime(1970, 1, 1, tzinfo=UTC)


def floor_to(moment: datetime, period: timedelta) -> datetime:
    """Return the start of the period that a moment is in, UTC."""
    return _ZERO + (moment - _ZERO) // period * period


def ceil_to(moment: datetime, period: timedelta) -> datetime:
    """Return the first start of a period that is not before a moment, UTC."""
    floor = floor_to(moment, period)
    return floor if floor == moment else floor + period


def hour_start(moment: datetime) -> datetime:
    """Return the start of the hour, UTC."""
    return floor_to(moment, HOUR)


def day_start(moment: datetime) -> datetime:
    """Return the start of the day, UTC."""
    return floor_to(moment, DAY)


def starts_in(begin: datetime, end: datetime, period: timedelta) -> Iterator[datetime]:
    """Yield the start of each period that has a moment from `begin` on and before `end`."""
    start = floor_to(begin, period)
    while start < end:
        yield start
        start += period


def in_steps(begin: datetime, end: datetime, step: timedelta) -> Iterator[tuple[datetime, datetime]]:
    """Yield the time from `begin` to `end`, split at midnights, UTC, in steps of whole days: what is left of a first
    day is one of its own.
    """
    while begin < end:
        midnight = begin + step if begin == day_start(begin) else ceil_to(begin, DAY)
        yield begin, min(midnight, end)
        begin = min(midnight, end)
