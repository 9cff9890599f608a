"""What is to become of the slots that are due."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from worker.cron.calendar import Calendar
from worker.cron.records import MissedPolicy, Schedule


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Neighbouring slots of one schedule."""

    first: datetime
    last: datetime
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which of the slots that are due fire, which were missed, and when the next one is."""

    fire: tuple[datetime, ...]
    missed: SlotRange | None
    next_slot_at: datetime | None


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Settle the slots from the schedule's next one to `now`, by its policy.

    A slot is on time for the schedule's grace. On-time slots fire. Of earlier ones the policy may have the last fire,
    where no slot is on time that stands for it. Raises PagemillError when this machine does not know the time zone.
    """
    on_time: list[datetime] = []
    late = _Range()
    upcoming: datetime | None = None
    for slot in _slots(schedule):
        if slot > now:
            upcoming = slot
            break
        if now - slot <= schedule.grace:
            on_time.append(slot)
        else:
            late.add(slot)
    if late.number and not on_time and schedule.missed is MissedPolicy.ONCE:
        return Plan((late.pop(),), late.freeze(), upcoming)
    return Plan(tuple(on_time), late.freeze(), upcoming)


def pass_over(schedule: Schedule, now: datetime) -> Plan:
    """Settle that no slot until `now` fires: the schedule was paused. They are the plan's `missed`."""
    passed = _Range()
    for slot in _slots(schedule):
        if slot > now:
            return Plan((), passed.freeze(), slot)
        passed.add(slot)
    return Plan((), passed.freeze(), None)


def first_slot(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the first slot later than `now` that lies between the schedule's start and end."""
    return next(upcoming_slots(schedule, now), None)


def upcoming_slots(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield the slots later than `after` that lie between the schedule's start and end."""
    calendar = Calendar.parse(schedule.expression, schedule.time_zone)
    if schedule.starts_at is not None:
        after = max(after, schedule.starts_at - timedelta.resolution)
    for slot in calendar.slots(after):
        if schedule.ends_at is not None and slot > schedule.ends_at:
            return
        yield slot


def _slots(schedule: Schedule) -> Iterator[datetime]:
    """Yield the slots from the schedule's next one on."""
    if schedule.next_slot_at is None:
        return iter(())
    return chain([schedule.next_slot_at], upcoming_slots(schedule, schedule.next_slot_at))


class _Range:
    """A range of slots that grows, without a list of them: down-time may have been long."""

    def __init__(self) -> None:
        self.number = 0
        self._first: datetime | None = None
        self._before_last: datetime | None = None
        self._last: datetime | None = None

    def add(self, slot: datetime) -> None:
        self._first = self._first or slot
        self._before_last, self._last = self._last, slot
        self.number += 1

    def pop(self) -> datetime:
        """Take the last slot out; once."""
        assert self._last is not None
        last, self._last = self._last, self._before_last
        self.number -= 1
        return last

    def freeze(self) -> SlotRange | None:
        if not self.number:
            return None
        assert self._first is not None
        assert self._last is not None
        return SlotRange(self._first, self._last, self.number)
