"""Which slots fire, which are missed: every slot is settled once, however the clock moves."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cron.conftest import START, schedule_of
from worker.cron.calendar import Calendar
from worker.cron.planning import SlotRange, first_slot, pass_over, plan
from worker.cron.records import MissedPolicy

HOUR = 3600


def at(minute: int, hour: int = 12) -> datetime:
    return datetime(2026, 3, 1, hour, minute, tzinfo=UTC)


def test_nothing_is_due_before_its_slot() -> None:
    settled = plan(schedule_of(), START)
    assert (settled.fire, settled.missed, settled.next_slot_at) == ((), None, at(1))


def test_slots_within_the_grace_fire() -> None:
    settled = plan(schedule_of(grace_seconds=120.0), at(3))
    assert (settled.fire, settled.missed, settled.next_slot_at) == ((at(1), at(2), at(3)), None, at(4))


def test_earlier_ones_are_missed_where_one_on_time_stands_for_them() -> None:
    settled = plan(schedule_of(grace_seconds=60.0), at(10))
    assert settled.fire == (at(9), at(10))
    assert settled.missed == SlotRange(at(1), at(8), 8)


@pytest.mark.parametrize(
    ("missed", "fire", "passed"),
    [
        (MissedPolicy.ONCE, (at(0, 14),), SlotRange(at(0, 13), at(0, 13), 1)),
        (MissedPolicy.SKIP, (), SlotRange(at(0, 13), at(0, 14), 2)),
    ],
)
def test_down_time(missed: MissedPolicy, fire: tuple[datetime, ...], passed: SlotRange) -> None:
    settled = plan(schedule_of(expression="0 * * * *", missed=missed), at(30, 14))
    assert (settled.fire, settled.missed, settled.next_slot_at) == (fire, passed, at(0, 15))


def test_one_slot_missed_runs_once_and_leaves_nothing_to_tell() -> None:
    settled = plan(schedule_of(expression="0 * * * *"), at(30, 13))
    assert (settled.fire, settled.missed) == ((at(0, 13),), None)


def test_start_and_end() -> None:
    schedule = schedule_of(starts_at=at(5), ends_at=at(6))
    assert first_slot(schedule, START) == at(5)
    settled = plan(schedule, at(7))
    assert (settled.fire, settled.next_slot_at) == ((at(5), at(6)), None)
    assert pass_over(schedule, at(7)).missed == SlotRange(at(5), at(6), 2)


@given(
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    expression=st.sampled_from(["30 2 * * *", "*/30 2 * * *", "0 * * * *", "*/20 * * * *", "15 */2 * * *"]),
    start=st.sampled_from([datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
    missed=st.sampled_from(MissedPolicy),
    moves=st.lists(st.integers(-2 * HOUR, 12 * HOUR), max_size=12),
)
def test_every_slot_is_settled_once_however_the_clock_moves(
    zone: str, expression: str, start: datetime, missed: MissedPolicy, moves: list[int]
) -> None:
    schedule = schedule_of(expression=expression, time_zone=zone, at=start, missed=missed)
    first, now = schedule.next_slot_at, start
    assert first is not None
    fired: list[datetime] = []
    ranges: list[SlotRange] = []
    for move in moves:
        now += timedelta(seconds=move)
        if schedule.next_slot_at is not None and schedule.next_slot_at <= now:
            settled = plan(schedule, now)
            fired += settled.fire
            ranges += [settled.missed] if settled.missed else []
            schedule = schedule_of(
                expression=expression, time_zone=zone, missed=missed, next_slot_at=settled.next_slot_at
            )
    slots = []
    for slot in Calendar.parse(expression, zone).slots(first - timedelta(seconds=1)):
        if slot == schedule.next_slot_at:
            break
        slots.append(slot)
    skipped = [slot for slot in slots if any(passed.first <= slot <= passed.last for passed in ranges)]
    assert sorted([*fired, *skipped]) == slots
    assert len(skipped) == sum(passed.number for passed in ranges)
