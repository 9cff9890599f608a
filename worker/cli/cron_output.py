"""What the `cron` commands print."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from worker.cli.tables import print_fields, print_table
from worker.cron.actions import BatchAction, JsonlAction, PromptAction, RagAction, parse_action
from worker.cron.calendar import Calendar
from worker.cron.history import RunDetail
from worker.cron.planning import upcoming_slots
from worker.cron.records import RunState, Schedule
from worker.errors import PagemillError
from worker.records import TERMINAL_STATES, JobState

MOST_PROMPT_CHARACTERS = 50


def describe(schedule: Schedule) -> str:
    """Return when a schedule fires, in English."""
    try:
        text = Calendar.parse(schedule.expression, schedule.time_zone).describe()
    except PagemillError as error:
        return f"never on this machine: {error}"
    return f"{text[0].lower()}{text[1:]}, {schedule.time_zone}"


def describe_action(schedule: Schedule) -> str:
    """Return what a schedule does, in some words."""
    try:
        action = parse_action(schedule.action)
    except PagemillError as error:
        return str(error)
    match action:
        case PromptAction():
            text = " ".join(str(action.job.get("prompt", "messages")).split())
            is_long = len(text) > MOST_PROMPT_CHARACTERS
            return f"prompt {f'{text[:MOST_PROMPT_CHARACTERS]}...' if is_long else text!r}"
        case JsonlAction():
            return f"jobs of {action.path}"
        case BatchAction():
            return f"requests of {action.path}"
        case RagAction():
            return f"summaries of {action.collection}"


def next_slots(schedule: Schedule, now: datetime, number: int) -> list[datetime]:
    """Return the next slots, in UTC."""
    return list(islice(upcoming_slots(schedule, now), number))


def slot_json(schedule: Schedule, slots: Sequence[datetime]) -> list[dict[str, str]]:
    """Return slots as JSON has them."""
    zone = ZoneInfo(schedule.time_zone)
    return [{"slot_at": slot.isoformat(), "local": slot.astimezone(zone).isoformat()} for slot in slots]


def print_slots(schedule: Schedule, slots: Sequence[datetime]) -> None:
    """Print slots, by the schedule's clock and in UTC."""
    zones = dict.fromkeys((schedule.time_zone, "UTC"))
    rows = [tuple(in_zone(slot, zone) for zone in zones) for slot in slots]
    print_table(f"Next slots of {schedule.name}", tuple(zones), rows)


def in_zone(moment: datetime | None, time_zone: str) -> str | None:
    """Return a time by the clock of a zone."""
    return None if moment is None else f"{moment.astimezone(ZoneInfo(time_zone)):%a %Y-%m-%d %H:%M %Z}"


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON has it."""
    fields = {name: getattr(schedule, name) for name in schedule.__slots__}
    return {**fields, "action": json.loads(schedule.action), "description": describe(schedule)}


def run_json(detail: RunDetail) -> dict[str, Any]:
    """Return a run as JSON has it."""
    fields = {name: getattr(detail.run, name) for name in detail.run.__slots__}
    return {"schedule": detail.schedule, **fields, "jobs": {str(state): count for state, count in detail.jobs.items()}}


def print_schedule(schedule: Schedule) -> None:
    """Print a schedule in full."""
    action = json.loads(schedule.action)
    fields = {
        "name": schedule.name,
        "expression": schedule.expression,
        "fires": describe(schedule),
        "state": state_of(schedule),
        "queue": schedule.queue,
        "tenant": schedule.tenant,
        "missed slots": schedule.missed,
        "overlap": schedule.overlap,
        "grace seconds": schedule.grace_seconds,
        "starts": in_zone(schedule.starts_at, schedule.time_zone),
        "ends": in_zone(schedule.ends_at, schedule.time_zone),
        "created": schedule.created_at,
        "action": action.pop("kind", None),
        **{name: value if isinstance(value, str) else json.dumps(value) for name, value in action.items()},
    }
    print_fields("Schedule", {name: value for name, value in fields.items() if value is not None})


def state_of(schedule: Schedule) -> str:
    """Return whether a schedule fires."""
    if schedule.removed_at is not None:
        return "removed"
    if schedule.paused_at is not None:
        return "paused"
    return "active" if schedule.next_slot_at is not None else "over"


def print_runs(runs: Sequence[RunDetail]) -> None:
    """Print what became of slots."""
    rows = [
        (
            detail.schedule,
            _slots_of(detail),
            f"{detail.run.state} ({detail.run.skip_reason})" if detail.run.skip_reason else detail.run.state,
            _jobs_of(detail),
            detail.run.batch_id,
            detail.run.message,
        )
        for detail in runs
    ]
    print_table("Runs", ("schedule", "slot", "state", "jobs", "batch", "message"), rows)


def print_schedules(schedules: Sequence[Schedule], latest: Mapping[str, RunDetail]) -> None:
    """Print a line for each schedule; `latest` are their last runs by id."""
    rows = [
        (
            schedule.name,
            schedule.expression,
            in_zone(schedule.next_slot_at, schedule.time_zone) if state_of(schedule) == "active" else None,
            state_of(schedule),
            describe_action(schedule),
            schedule.queue,
            _last(latest.get(schedule.id)),
        )
        for schedule in schedules
    ]
    print_table("Schedules", ("name", "expression", "next", "state", "action", "queue", "last run"), rows)


def _last(detail: RunDetail | None) -> str | None:
    return None if detail is None else f"{in_zone(detail.run.slot_at, detail.time_zone)}: {detail.run.state}"


def _slots_of(detail: RunDetail) -> str:
    run = detail.run
    first = f"{in_zone(run.slot_at, detail.time_zone)}{' by hand' if run.kind == 'manual' else ''}"
    if run.num_slots == 1:
        return first
    return f"{first} to {in_zone(run.last_slot_at, detail.time_zone)} ({run.num_slots} slots)"


def _jobs_of(detail: RunDetail) -> str | None:
    if detail.run.state is RunState.SKIPPED:
        return None
    ended = {state: count for state, count in detail.jobs.items() if state in TERMINAL_STATES}
    waiting = sum(detail.jobs.values()) - sum(ended.values())
    parts = [f"{ended[state]} {state}" for state in JobState if state in ended]
    if waiting:
        parts.append(f"{waiting} to do")
    total = f" of {detail.run.num_jobs}" if detail.run.num_jobs is not None else ""
    return ", ".join(parts) + total if parts else f"0{total}"
