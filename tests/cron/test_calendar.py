"""Slots, held against a clock that is watched minute by minute through the days on which it is set."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.cron.calendar import Calendar
from worker.errors import PagemillError

MINUTE = timedelta(minutes=1)
CHANGES = (  # of a zone's clock: about noon of the day before
    ("Europe/Berlin", datetime(2026, 3, 28, 12)),
    ("Europe/Berlin", datetime(2026, 10, 24, 12)),
    ("America/New_York", datetime(2026, 3, 7, 12)),
    ("America/New_York", datetime(2026, 10, 31, 12)),
    ("America/Santiago", datetime(2026, 4, 4, 12)),  # at midnight
    ("America/Santiago", datetime(2026, 9, 5, 12)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 12)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 12)),
    ("Antarctica/Troll", datetime(2026, 3, 28, 12)),  # by two hours
    ("Antarctica/Troll", datetime(2026, 10, 24, 12)),
    ("Pacific/Apia", datetime(2011, 12, 29, 12)),  # a day was left out
    ("Asia/Kathmandu", datetime(2026, 3, 28, 12)),  # never
    ("UTC", datetime(2026, 3, 28, 12)),
)
MINUTES: dict[str, Callable[[int], bool]] = {
    "*": lambda minute: True,
    "*/30": lambda minute: minute % 30 == 0,
    "0,45": lambda minute: minute in (0, 45),
    "15": lambda minute: minute == 15,
    "58-59": lambda minute: minute >= 58,
}
HOURS: dict[str, Callable[[int], bool]] = {
    "*": lambda hour: True,
    "0-23": lambda hour: True,
    "*/2": lambda hour: hour % 2 == 0,
    "2": lambda hour: hour == 2,
    "0": lambda hour: hour == 0,
    "1-3": lambda hour: 1 <= hour <= 3,
}
EVERY_HOUR = ("*", "0-23")
SPAN = timedelta(hours=26)  # more than any change of a clock


def watched_slots(zone: ZoneInfo, minute: str, hour: str, start: datetime, end: datetime) -> list[datetime]:
    """Return the instants later than `start` and before `end` at which the schedule is to fire, by looking at the
    clock."""
    shown: dict[datetime, list[datetime]] = defaultdict(list)
    instants = [start - SPAN + number * MINUTE for number in range((end - start + 2 * SPAN) // MINUTE)]
    for instant in instants:
        shown[instant.astimezone(zone).replace(tzinfo=None)].append(instant)
    found: set[datetime] = set()
    wall = later = max(shown)  # backwards, so that what comes after a gap is known
    first = min(shown)
    while wall >= first:
        later = wall if wall in shown else later
        if MINUTES[minute](wall.minute) and HOURS[hour](wall.hour):
            found.update(shown[later] if hour in EVERY_HOUR and wall == later else shown[later][:1])
        wall -= MINUTE
    return sorted(slot for slot in found if start < slot < end)


@settings(max_examples=40)
@given(
    change=st.sampled_from(CHANGES),
    minute=st.sampled_from(sorted(MINUTES)),
    hour=st.sampled_from(sorted(HOURS)),
    start=st.integers(0, 24 * 60),
    length=st.integers(1, 8 * 60),
)
def test_slots_are_those_that_a_clock_shows(
    change: tuple[str, datetime], minute: str, hour: str, start: int, length: int
) -> None:
    zone = ZoneInfo(change[0])
    after = change[1].replace(tzinfo=UTC) + start * MINUTE
    end = after + length * MINUTE
    slots = Calendar.parse(f"{minute} {hour} * * *", change[0]).slots(after)
    assert list(takewhile(lambda slot: slot < end, slots)) == watched_slots(zone, minute, hour, after, end)


@settings(max_examples=40)
@given(
    change=st.sampled_from(CHANGES),
    minute=st.sampled_from(sorted(MINUTES)),
    hour=st.sampled_from(sorted(HOURS)),
    seconds=st.floats(0, 48 * 3600),
)
def test_slots_do_not_depend_on_who_looks_when(
    change: tuple[str, datetime], minute: str, hour: str, seconds: float
) -> None:
    calendar = Calendar.parse(f"{minute} {hour} * * *", change[0])
    after = change[1].replace(tzinfo=UTC) + timedelta(seconds=seconds)
    slots = list(islice(calendar.slots(after), 5))
    one_by_one = [after]
    for _ in slots:
        one_by_one.append(next(calendar.slots(one_by_one[-1])))
    assert slots == one_by_one[1:]
    assert slots == sorted(set(slots))


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
        ),
        ("@daily", "America/Santiago", "2026-09-05T12:00", ["2026-09-06T01:00-03:00", "2026-09-07T00:00-03:00"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        ("0 9 * * MON-FRI", "UTC", "2026-11-27T10:00", ["2026-11-30T09:00+00:00"]),
    ],
)
def test_slots_in_their_zone(expression: str, zone: str, after: str, expected: list[str]) -> None:
    slots = Calendar.parse(expression, zone).slots(datetime.fromisoformat(after).replace(tzinfo=UTC))
    found = [slot.astimezone(ZoneInfo(zone)).isoformat(timespec="minutes") for slot in islice(slots, len(expected))]
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "zone", "error"),
    [
        ("0 0 31 2 *", "UTC", "expression: '0 0 31 2 *' can never fire: day-of-month 31 is in no month of 2"),
        ("0 0 31 4,6,9,11 *", "UTC", "can never fire"),
        ("61 * * * *", "UTC", "expression: minute '61' is not understood; it is 0 to 59"),
        ("* 24 * * *", "UTC", "expression: hour '24' is not understood; it is 0 to 23"),
        ("* * * 13 *", "UTC", "expression: month '13' is not understood"),
        ("* * * * 8", "UTC", "expression: day-of-week '8' is not understood"),
        ("* * * * MON#6", "UTC", "expression: day-of-week 'MON#6' is not understood"),
        ("*/0 * * * *", "UTC", "expression: minute '*/0' is not understood"),
        ("* * * *", "UTC", "expression: '* * * *' has 4 fields; five are needed"),
        ("0 * * * * *", "UTC", "has 6 fields"),
        ("", "UTC", "expression: '' has 0 fields"),
        ("@reboot", "UTC", "expression: '@reboot' is none of @yearly"),
        ("1" * 300 + " * * * *", "UTC", "expression: has 308 characters; at most 200 are read"),
        ("* * * * *", "Europe/Berlim", "time zone: 'Europe/Berlim' is not known; is it Europe/Berlin?"),
        ("* * * * *", "../UTC", "time zone: '../UTC' is not known"),
        ("* * * * *", "Europe", "time zone: 'Europe' is not known"),
        ("* * * * *", "localtime", "time zone: 'localtime' is not known"),
        ("* * * * *", "", "time zone: '' is not known"),
        ("* * * * *", "\x1b[31m\x00", "time zone: '\\x1b[31m\\x00' is not known"),
    ],
)
def test_what_cannot_be_read_or_never_fires_is_refused(expression: str, zone: str, error: str) -> None:
    with pytest.raises(PagemillError) as refused:
        Calendar.parse(expression, zone)
    assert error in str(refused.value)
    assert str(refused.value).isprintable()
