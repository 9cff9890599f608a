"""`pagemill cron scheduler`: a scheduler without an engine."""

import signal
from typing import Any

import click

from worker.cli.cron_stores import opened_scheduling, scheduler_name
from worker.cli.logs import configure_logging
from worker.cli.options import service_options
from worker.cron.scheduler import TICK_SECONDS, Scheduler
from worker.errors import TryLater
from worker.running.beats import Beat
from worker.running.failpoints import Failpoints, parse_faults
from worker.running.threads import Failure, Flag, ServiceThread
from worker.settings import load_settings
from worker.sql import schema

PATIENCE_SECONDS = 5.0  # for runs to stop where they are
POLL_SECONDS = 1.0


@click.command()
@service_options
def scheduler(**flags: Any) -> None:
    """Fire schedules until SIGTERM or Ctrl-C.

    Workers do the same beside their engines, unless told --no-scheduler. Run as many as you like: one leads, and
    another takes over within seconds when it dies.

    \b
    Example:
      pagemill cron scheduler
    """
    settings = load_settings(flags)
    configure_logging(settings)
    schema.check(settings.sql_url())
    stopping = Flag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with opened_scheduling(settings) as scheduling:
        name = scheduler_name()
        own = Scheduler(
            name,
            scheduling.database,
            scheduling.connection,
            settings,
            Failpoints(parse_faults(settings.failpoints)),
            stopped=stopping.is_set,
        )
        beat = Beat(own.tick, TICK_SECONDS, "look for due schedules")
        failure = Failure()
        thread = ServiceThread("scheduler", beat.run, failure)
        thread.start()
        click.echo(f"scheduler {name} runs", err=True)
        while not stopping.wait(POLL_SECONDS) and failure.error is None:
            pass
        beat.stop()
        thread.join(PATIENCE_SECONDS)
        own.close(PATIENCE_SECONDS)
    if failure.error is not None:
        raise TryLater(f"the scheduler stopped: {failure.error}") from failure.error
