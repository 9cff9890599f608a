"""When a schedule fires: cron expressions on a wall clock, whose days may have 23 or 25 hours.

cronsim says which wall-clock times an expression means; which instants these are is settled here, by three rules:

- A time that the clock shows twice (it is set back) counts once, the first time.
- A time that the clock leaves out (it is set forward) counts at the first instant after the gap.
- An expression for every hour of a day (`0 * * * *`) goes on hour by hour: it counts both times.

So no slot is doubled or skipped, and slots that fall on one instant are one slot.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from heapq import merge
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from worker.errors import PagemillError

MAX_CHARACTERS = 200
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
RANGES = ("0 to 59", "0 to 23", "1 to 31", "1 to 12 or JAN to DEC", "0 to 7 (Sunday is 0 and 7) or SUN to SAT")
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
HOURS_OF_A_DAY = 24
SETTLED = datetime(2001, 1, 1)  # any wall-clock time will do to read an expression
NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})  # they mean another zone on each machine, or none
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Calendar:
    """The slots of one expression in one time zone."""

    fields: str  # five, none of the macros
    zone: ZoneInfo
    is_hourly: bool  # it means every hour of a day

    @classmethod
    def parse(cls, expression: str, time_zone: str) -> Self:
        """Read an expression of five fields or a macro such as @daily, and the IANA name of a time zone.

        Raises PagemillError, which names the field and the reason, for what cannot be read or can never fire.
        """
        zone = parse_zone(time_zone)
        fields = _parse_fields(expression)
        calendar = cls(fields, zone, len(CronSim(fields, SETTLED).hours) == HOURS_OF_A_DAY)
        if next(CronSim(fields, SETTLED), None) is None:
            raise PagemillError(f"expression: {expression!r} can never fire: no day within 50 years is one of these")
        return calendar

    def describe(self) -> str:
        """Return the expression in English."""
        return CronSim(self.fields, SETTLED).explain()

    def slots(self, after: datetime) -> Iterator[datetime]:
        """Yield the slots later than `after`, in UTC and strictly rising, for as long as there are any within 50 years
        of each other."""
        last = after.astimezone(UTC)
        # Rules may disagree with the order of wall-clock times only where the clock is set back, hence the merging.
        for slot in merge(*(self._instants(last, fold) for fold in ((0, 1) if self.is_hourly else (0,)))):
            if slot > last:
                last = slot
                yield slot

    def _instants(self, after: datetime, fold: int) -> Iterator[datetime]:
        """Yield instants of wall-clock times in their order, those later than `after` among them; of a time that the
        clock shows twice, the first with `fold` 0 and the second with 1."""
        start = after.astimezone(self.zone).replace(tzinfo=None)
        if fold:  # a second time may lie ahead of an instant at which the clock shows later than that already
            start -= max(timedelta(), _offset(after, self.zone) - _offset(after + DAY, self.zone))
        for wall in CronSim(self.fields, start):
            yield _instant(wall, self.zone, fold)


def _instant(wall: datetime, zone: ZoneInfo, fold: int) -> datetime:
    """Return when the clock shows `wall`, or is set past it, in UTC."""
    while True:
        instant = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == wall:
            return instant
        wall += MINUTE


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def parse_zone(name: str) -> ZoneInfo:
    """Return the time zone of an IANA name. Raises PagemillError."""
    if name not in NO_ZONES:
        with suppress(ZoneInfoNotFoundError, ValueError, OSError):  # what is no name of a file, or of a folder
            return ZoneInfo(name)
    known = available_timezones() - NO_ZONES
    close = get_close_matches(name, known, n=1)
    hint = f"; is it {close[0]}?" if close else "; IANA's names are for example UTC, Europe/Berlin, America/New_York"
    raise PagemillError(f"time zone: {_shorten(name)} is not known{hint}")


def _parse_fields(expression: str) -> str:
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in MACROS:
            raise PagemillError(f"expression: {_shorten(text)} is none of {', '.join(MACROS)}")
        return MACROS[text.lower()]
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise PagemillError(
            f"expression: {_shorten(text)} has {len(fields)} fields; five are needed: {', '.join(FIELDS)}"
        )
    if len(text) > MAX_CHARACTERS:
        raise PagemillError(f"expression: has {len(text)} characters; at most {MAX_CHARACTERS} are read")
    for place, field in enumerate(fields):
        alone = ["*"] * len(FIELDS)
        alone[place] = field
        if not _is_readable(alone):
            raise PagemillError(
                f"expression: {FIELDS[place]} {_shorten(field)} is not understood; it is {RANGES[place]}"
            )
    if not _is_readable(fields):  # each field by itself is well
        raise PagemillError(
            f"expression: {_shorten(text)} can never fire: day-of-month {fields[2]} is in no month of {fields[3]}"
        )
    return " ".join(fields)


def _is_readable(fields: list[str]) -> bool:
    try:
        CronSim(" ".join(fields), SETTLED)
    except CronSimError:
        return False
    return True


def _shorten(text: str) -> str:
    return ascii(text if len(text) <= 60 else f"{text[:57]}...")
