"""`pagemill cron add`: a schedule, checked as far as can be today."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from worker.cli.cron_output import describe, next_slots, print_slots, schedule_json, slot_json
from worker.cli.cron_stores import opened_scheduling, warn_without_scheduler
from worker.cli.job_options import given_fields, job_options
from worker.cli.options import QueueName, Span, json_option, service_options
from worker.cli.output import message, print_json
from worker.cli.prompts import read_prompt
from worker.cron.actions import Action, ActionKind, check_name, dump_action, make_action
from worker.cron.calendar import parse_zone
from worker.cron.planning import first_slot
from worker.cron.records import MissedPolicy, OverlapPolicy, Schedule
from worker.errors import PagemillError
from worker.jobs import DEFAULT_TENANT
from worker.queue.submission import valid_payload
from worker.settings import load_settings

SHOWN_SLOTS = 3


class ZonedTime(click.ParamType[datetime]):
    """An ISO date or time; without an offset it is one of the schedule's time zone, which is not known here yet."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the time, naive where it has no offset, or fail with the forms that are understood."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time; write for example 2026-12-01 or 2026-12-01T08:00", param, ctx)


@click.command()
@click.argument("name")
@click.argument("expression")
@click.option("--tz", "time_zone", default="UTC", show_default=True, help="IANA time zone of the expression.")
@click.option("--prompt", help="Submit this prompt.")
@click.option("--file", "file", metavar="PATH", help="Submit this file's text, as it is now, as one prompt.")
@click.option("--jsonl", metavar="PATH", help="Submit the jobs of this file, as it is at each slot.")
@click.option("--batch", metavar="PATH", help="Submit this file of requests in OpenAI's batch format, likewise.")
@click.option("--rag", metavar="COLLECTION", help="Summarise what is new or has changed in a collection of documents.")
@click.option("--index", is_flag=True, help="With --rag: read the collection's source again first.")
@click.option("--instructions", metavar="TEXT", help="With --rag: what to do with each document.")
@click.option("--queue", type=QueueName(), help="Default: the first of the setting queues.")
@click.option(
    "--missed",
    type=click.Choice([policy.value for policy in MissedPolicy]),
    default=MissedPolicy.ONCE.value,
    show_default=True,
    help="Slots that nobody fired in time: run once for all of them, or skip them.",
)
@click.option(
    "--overlap",
    type=click.Choice([policy.value for policy in OverlapPolicy]),
    default=OverlapPolicy.SKIP.value,
    show_default=True,
    help="Slots that come while jobs of an earlier run have not ended.",
)
@click.option("--grace", type=Span(), default="5m", show_default=True, help="Time after which a slot counts as missed.")
@click.option("--start", type=ZonedTime(), help="No slot before; in the schedule's time zone.")
@click.option("--end", type=ZonedTime(), help="No slot after.")
@click.option("--deadline", type=Span(), metavar="SPAN", help="Fail jobs that have not ended so long after the slot.")
@job_options
@service_options
@json_option
def add(
    name: str,
    expression: str,
    time_zone: str,
    prompt: str | None,
    file: str | None,
    jsonl: str | None,
    batch: str | None,
    rag: str | None,
    index: bool,
    instructions: str | None,
    queue: str | None,
    missed: str,
    overlap: str,
    grace: timedelta,
    start: datetime | None,
    end: datetime | None,
    deadline: timedelta | None,
    as_json: bool,
    redis_url: str | None,
    database_url: str | None,
    data_dir: str | None,
    **fields: Any,
) -> None:
    """Add the schedule NAME.

    It fires at the slots of a cron EXPRESSION, which has five fields (minute, hour, day of month, month, day of week)
    or is one of @hourly, @daily, @weekly, @monthly, @yearly. It is read by the clock of --tz: a time that the clock
    shows twice counts once, and one that it leaves out counts right after the gap.

    \b
    Examples:
      pagemill cron add news "0 7 * * MON-FRI" --tz Europe/Berlin --prompt "Write a haiku about mornings."
      pagemill cron add nightly "30 2 * * *" --tz America/New_York --jsonl /srv/prompts.jsonl --queue bulk
      pagemill cron add manuals @daily --rag manuals --index --queue bulk
      pagemill cron add hourly @hourly --jsonl /srv/feed.jsonl --overlap allow --deadline 1h
    """
    settings = load_settings(
        {
            "queues": None if queue is None else (queue,),
            "redis_url": redis_url,
            "database_url": database_url,
            "data_dir": data_dir,
        }
    )
    given = given_fields(fields)
    tenant = str(given.pop("tenant", DEFAULT_TENANT))
    valid_payload({"prompt": "?", "tenant": tenant})
    if deadline is not None:
        given["deadline_seconds"] = deadline.total_seconds()
    if rag is None and (index or instructions is not None):
        raise click.UsageError("--index and --instructions go with --rag")
    given |= {"index": True} if index else {}
    given |= {} if instructions is None else {"instructions": instructions}
    action = _action({"prompt": prompt, "file": file, "jsonl": jsonl, "batch": batch, "rag": rag}, given)
    with opened_scheduling(settings) as scheduling:
        now = scheduling.clock()
        schedule = _schedule(
            now,
            name=check_name(name),
            expression=expression.strip(),
            time_zone=time_zone,
            action=dump_action(action),
            queue=settings.queues[0],
            tenant=tenant,
            missed=MissedPolicy(missed),
            overlap=OverlapPolicy(overlap),
            grace_seconds=grace.total_seconds(),
            starts_at=_in_utc(start, time_zone),
            ends_at=_in_utc(end, time_zone),
        )
        scheduling.schedules.add(schedule)
        slots = next_slots(schedule, now, SHOWN_SLOTS)
        if as_json:
            print_json({**schedule_json(schedule), "next": slot_json(schedule, slots)})
        else:
            message(f"schedule {name} fires {describe(schedule)}")
            print_slots(schedule, slots)
        path = jsonl or batch
        if path is not None and not Path(path).is_file():
            message(f"{path} is not there yet; it has to be at each slot, where the scheduler runs")
        warn_without_scheduler(settings, scheduling.database)


def _schedule(now: datetime, **fields: Any) -> Schedule:
    """Return a new schedule. Raises PagemillError for one that will never fire."""
    schedule = Schedule(id=uuid4().hex, created_at=now, paused_at=None, removed_at=None, next_slot_at=None, **fields)
    slot = first_slot(schedule, now)
    if slot is None:
        raise PagemillError(
            f"expression: {schedule.expression!r} has no slot from {_shown(schedule.starts_at) or 'now'} "
            f"to {_shown(schedule.ends_at)}"
        )
    return replace(schedule, next_slot_at=slot)


def _action(sources: Mapping[str, str | None], fields: dict[str, Any]) -> Action:
    """Return the action of the one source that was given. `fields` are what goes with it."""
    given = {kind: value for kind, value in sources.items() if value is not None}
    if len(given) != 1:
        raise click.UsageError(f"give one of {', '.join(f'--{name}' for name in sources)}")
    ((kind, value),) = given.items()
    if kind == "rag":
        return make_action(ActionKind.RAG, collection=value, **fields)
    if kind == "batch":
        return make_action(ActionKind.BATCH, path=str(Path(value).absolute()), **fields)
    deadline = {"deadline_seconds": fields.pop("deadline_seconds", None)}
    if kind == "jsonl":
        return make_action(ActionKind.JSONL, path=str(Path(value).absolute()), defaults=fields, **deadline)
    text = value if kind == "prompt" else read_prompt(value)
    return make_action(ActionKind.PROMPT, job={"prompt": text, **fields}, **deadline)


def _in_utc(moment: datetime | None, time_zone: str) -> datetime | None:
    """Return a time in UTC, one without an offset read by the clock of `time_zone`."""
    if moment is None:
        return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=parse_zone(time_zone))).astimezone(UTC)
    except OverflowError:
        raise PagemillError(f"start, end: {moment.isoformat()} is not within the years 1 to 9999 in UTC") from None


def _shown(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
