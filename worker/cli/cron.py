"""`pagemill cron`: prompts that are submitted by themselves, at the slots of cron expressions."""

from datetime import UTC, datetime
from typing import Any

import click

from worker.cli.cron_add import add
from worker.cli.cron_output import (
    next_slots,
    print_runs,
    print_schedule,
    print_schedules,
    print_slots,
    run_json,
    schedule_json,
    slot_json,
    state_of,
)
from worker.cli.cron_scheduler import scheduler
from worker.cli.cron_stores import opened_scheduling, scheduler_name, warn_without_scheduler
from worker.cli.options import Since, json_option, service_options, store_options
from worker.cli.output import message, print_json
from worker.cli.progress import StatusLine
from worker.cli.stores import opened_database
from worker.cron.firing import Firer
from worker.cron.history import read_history
from worker.cron.records import RunState
from worker.cron.run_store import RunStore
from worker.cron.schedule_store import ScheduleStore
from worker.errors import PagemillError, TryLater
from worker.running.failpoints import Failpoints, parse_faults
from worker.settings import load_settings

SHOWN_SLOTS = 3
SHOWN_RUNS = 5
TICK_JOBS = 500  # between two figures of progress


@click.group()
def cron() -> None:
    """Submit prompts by themselves: schedules, kept in SQL.

    Every worker is a scheduler too (see the setting scheduler), and `pagemill cron scheduler` is one without an
    engine. One of them leads; a slot fires once, whatever their number and whichever dies.

    \b
    Examples:
      pagemill cron add nightly "30 2 * * *" --tz Europe/Berlin --jsonl /srv/prompts.jsonl
      pagemill cron ls
      pagemill cron history nightly
    """


cron.add_command(add)
cron.add_command(scheduler)


@cron.command("ls")
@click.option("--all", "removed", is_flag=True, help="Those that were removed as well.")
@store_options
@json_option
def list_schedules(removed: bool, as_json: bool, **flags: Any) -> None:
    """List the schedules, with their next slot and their last run.

    \b
    Example:
      pagemill cron ls
    """
    settings = load_settings(flags)
    with opened_database(settings) as database:
        schedules = ScheduleStore(database).schedules(removed=removed)
        latest = {
            schedule.id: detail
            for schedule in schedules
            for detail in read_history(database, schedule.name, 1)
            if detail.run.schedule_id == schedule.id
        }
        if as_json:
            print_json(
                [
                    {
                        **schedule_json(schedule),
                        "state": state_of(schedule),
                        "last_run": run_json(latest[schedule.id]) if schedule.id in latest else None,
                    }
                    for schedule in schedules
                ]
            )
        else:
            print_schedules(schedules, latest)
        if any(state_of(schedule) == "active" for schedule in schedules):
            warn_without_scheduler(settings, database)


@cron.command()
@click.argument("name")
@store_options
@json_option
def show(name: str, as_json: bool, **flags: Any) -> None:
    """Show the schedule NAME, its next slots and last runs.

    \b
    Example:
      pagemill cron show nightly
    """
    with opened_database(load_settings(flags)) as database:
        schedule = ScheduleStore(database).find(name)
        slots = next_slots(schedule, datetime.now(UTC), SHOWN_SLOTS)
        runs = read_history(database, name, SHOWN_RUNS)
    if as_json:
        print_json(
            {
                **schedule_json(schedule),
                "state": state_of(schedule),
                "next": slot_json(schedule, slots),
                "runs": [run_json(detail) for detail in runs],
            }
        )
        return
    print_schedule(schedule)
    if schedule.paused_at is None:
        print_slots(schedule, slots)
    if runs:
        print_runs(runs)


@cron.command("next")
@click.argument("name")
@click.option("-n", "number", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many slots.")
@store_options
@json_option
def next_command(name: str, number: int, as_json: bool, **flags: Any) -> None:
    """Print the next slots of the schedule NAME.

    \b
    Example:
      pagemill cron next nightly -n 10
    """
    with opened_database(load_settings(flags)) as database:
        schedule = ScheduleStore(database).find(name)
    slots = next_slots(schedule, datetime.now(UTC), number)
    print_json(slot_json(schedule, slots)) if as_json else print_slots(schedule, slots)
    if schedule.paused_at is not None:
        message(f"{name} is paused: none of them fires until `pagemill cron resume {name}`")


@cron.command()
@click.argument("name")
@service_options
@json_option
def run(name: str, as_json: bool, **flags: Any) -> None:
    """Fire the schedule NAME now, once.

    It fires whether or not it is paused, and whether or not jobs of an earlier run have ended. Its jobs are submitted
    by this command; should it be interrupted, a scheduler submits the rest.

    \b
    Example:
      pagemill cron run nightly
    """
    settings = load_settings(flags)
    line = StatusLine()
    with opened_scheduling(settings) as scheduling:
        schedule = scheduling.schedules.find(name)
        firer = Firer(
            scheduler_name(),
            settings,
            scheduling.database,
            scheduling.connection,
            RunStore(scheduling.database),
            scheduling.clock,
            Failpoints(parse_faults(settings.failpoints)),
            stopped=lambda: False,
            tick=lambda number: line.show(f"{number} jobs checked") if number % TICK_JOBS == 0 else None,
        )
        opened = scheduling.schedules.open_manual(schedule, firer.holder, scheduling.clock())
        try:
            done = firer.fire(opened, schedule)
        finally:
            line.clear()
    if done.state is RunState.FAILED:
        raise PagemillError(f"schedule {name}: {done.message}")
    if done.state is RunState.FIRING:
        raise TryLater(f"schedule {name}: a scheduler will submit its jobs: {done.message}")
    if as_json:
        print_json({"run": done.id, "batch": done.batch_id, "queue": schedule.queue, "jobs": done.num_jobs})
    else:
        click.echo(done.batch_id)
        jobs = "1 job" if done.num_jobs == 1 else f"{done.num_jobs} jobs"
        message(f"{jobs} submitted; `pagemill status --batch {done.batch_id}` tells how far they are")


@cron.command()
@click.argument("name")
@service_options
def pause(name: str, **flags: Any) -> None:
    """Let the schedule NAME fire no more for now.

    \b
    Example:
      pagemill cron pause nightly
    """
    with opened_scheduling(load_settings(flags)) as scheduling:
        scheduling.schedules.pause(name, scheduling.clock())


@cron.command()
@click.argument("name")
@service_options
@json_option
def resume(name: str, as_json: bool, **flags: Any) -> None:
    """Let the schedule NAME fire again.

    The slots of the pause are recorded as skipped.

    \b
    Example:
      pagemill cron resume nightly
    """
    with opened_scheduling(load_settings(flags)) as scheduling:
        schedule = scheduling.schedules.resume(name, scheduling.clock())
        slots = next_slots(schedule, scheduling.clock(), 1)
        print_json(slot_json(schedule, slots)) if as_json else print_slots(schedule, slots)
        warn_without_scheduler(scheduling.settings, scheduling.database)


@cron.command("rm")
@click.argument("name")
@service_options
def remove(name: str, **flags: Any) -> None:
    """Remove the schedule NAME.

    Its history stays, and so do jobs that it has submitted.

    \b
    Example:
      pagemill cron rm nightly
    """
    with opened_scheduling(load_settings(flags)) as scheduling:
        scheduling.schedules.remove(name, scheduling.clock())


@cron.command()
@click.argument("name", required=False)
@click.option("-n", "number", type=click.IntRange(1, 10_000), default=20, show_default=True, help="How many runs.")
@click.option("--since", type=Since(), help="Runs from then on only: 1h, 7d, 2026-05-01.")
@store_options
@json_option
def history(name: str | None, number: int, since: datetime | None, as_json: bool, **flags: Any) -> None:
    """Print what became of the slots of NAME, or of all.

    A slot was fired, skipped or has failed; the message says why. The latest come first. A removed schedule keeps its
    history.

    \b
    Example:
      pagemill cron history nightly --since 7d
    """
    with opened_database(load_settings(flags)) as database:
        runs = read_history(database, name, number, since)
    print_json([run_json(detail) for detail in runs]) if as_json else print_runs(runs)
    if not runs and name is not None:
        message(f"no slot of a schedule {name} has come yet")
