"""Schedules in a world: slots that are due, and what became of them."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from scripts.fault_table.rows import Trial
from scripts.fault_table.world import World
from worker.cron.actions import ActionKind, dump_action, job_id, make_action
from worker.cron.history import RunDetail, read_history
from worker.cron.records import MissedPolicy, OverlapPolicy, RunState, Schedule
from worker.cron.schedule_store import ScheduleStore

PROMPT = {"prompt": "What is the time?", "max_tokens": 2, "ignore_eos": True}
MINUTE = timedelta(minutes=1)


def this_minute() -> datetime:
    """Return the last full minute, in UTC."""
    return datetime.now(UTC).replace(second=0, microsecond=0)


def add_schedule(
    world: World, name: str, expression: str, *, first: datetime, last: datetime, time_zone: str = "UTC"
) -> None:
    """Add a schedule of one prompt, whose slots are those from `first`, which is one, to `last`."""
    schedule = Schedule(
        id=uuid4().hex,
        name=name,
        expression=expression,
        time_zone=time_zone,
        action=dump_action(make_action(ActionKind.PROMPT, job=PROMPT)),
        queue="default",
        tenant="default",
        missed=MissedPolicy.ONCE,
        overlap=OverlapPolicy.ALLOW,
        grace_seconds=600.0,
        starts_at=first,
        ends_at=last,
        created_at=first - MINUTE,
        paused_at=None,
        removed_at=None,
        next_slot_at=first,
    )
    ScheduleStore(world.database).add(schedule)


def runs_of(world: World, name: str) -> tuple[RunDetail, ...]:
    """Return what became of a schedule's slots, the latest first."""
    return read_history(world.database, name, 1000)


def wait_for_runs(world: World, name: str, number: int) -> None:
    """Wait until a schedule has so many runs that were submitted; their jobs count as accepted. Raises RowFailed."""

    def submitted() -> list[RunDetail]:
        return [detail for detail in runs_of(world, name) if detail.run.state is RunState.SUBMITTED]

    world.wait_for(lambda: len(submitted()) >= number, f"{number} runs of schedule {name} are submitted")
    world.accepted += [job_id(detail.run.id, 0) for detail in submitted()]


def check_slots(trial: Trial, world: World, name: str, number: int) -> None:
    """Every one of a schedule's slots that have come was settled, once."""
    runs = runs_of(world, name)
    settled = sum(detail.run.num_slots for detail in runs)
    trial.check(settled == number, f"schedule {name}: {settled} slots were settled, not {number}")
    jobs = sum(sum(detail.jobs.values()) for detail in runs)
    fired = sum(detail.run.state is RunState.SUBMITTED for detail in runs)
    trial.check(jobs == fired, f"schedule {name}: {fired} runs have {jobs} jobs")
