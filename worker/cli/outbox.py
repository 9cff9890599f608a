"""`pagemill outbox`: jobs that apps submit within their own database transactions."""

import signal
import threading
from typing import Any

import click

from worker.cli.logs import configure_logging
from worker.cli.options import json_option, service_options, store_options
from worker.cli.output import message, print_json
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.outbox.relaying import Relay
from worker.running.beats import Beat
from worker.running.failpoints import Failpoints, parse_faults
from worker.settings import load_settings

COLUMNS = ("waiting", "recorded", "oldest")


@click.group()
def outbox() -> None:
    """Look at the outbox, and move its committed jobs to the queue.

    An app adds a row to the table pagemill_outbox in its own transaction; the job exists if and only if that commits.
    Every worker empties the outbox (outbox_seconds); a relay of its own is for where none runs all the time.

    \b
    Example:
      pagemill outbox status
    """


@outbox.command()
@service_options
@json_option
@click.option("--follow", is_flag=True, help="Go on until stopped, instead of ending when the outbox is empty.")
def relay(follow: bool, as_json: bool, **flags: Any) -> None:
    """Move the outbox's committed jobs to the queue. Any number of relays may run at once, beside workers.

    A row that is no job is dead-lettered with the reason (`pagemill dead list`) and holds nothing up.

    \b
    Examples:
      pagemill outbox relay
      pagemill outbox relay --follow --database-url postgresql://app@localhost/shop
    """
    settings = load_settings(flags)
    configure_logging(settings)
    stopped = threading.Event()
    with opened_store(settings) as store, opened_queue(settings) as connection:
        failpoints = Failpoints(parse_faults(settings.failpoints))
        emptier = Relay(store, connection, settings.result_ttl_seconds, failpoints, stopped.is_set)
        if follow:
            beat = Beat(lambda: _log(emptier.run()), settings.outbox_seconds, "empty the outbox")

            def stop(*_: object) -> None:
                stopped.set()
                beat.stop()

            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, stop)
            beat.run()
            return
        num_moved = emptier.run()
    print_json({"queued": num_moved}) if as_json else message(f"{num_moved} jobs were queued")


@outbox.command()
@store_options
@json_option
def status(as_json: bool, **flags: Any) -> None:
    """Show how many jobs wait in the outbox, and since when.

    \b
    Example:
      pagemill outbox status --json
    """
    with opened_store(load_settings(flags)) as store:
        found = store.outbox_status()
    if as_json:
        print_json(found)
    else:
        print_table("Outbox", COLUMNS, [(found.num_waiting, found.num_recorded, found.oldest_at)])


def _log(num_moved: int) -> None:
    if num_moved:
        message(f"{num_moved} jobs were queued")
