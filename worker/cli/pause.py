"""`pagemill pause` and `pagemill resume`: stop and restart the claims of a queue."""

from typing import Any

import click
import redis

from worker.cli.options import QueueName, json_option, queue_options
from worker.cli.output import print_json
from worker.cli.queues import opened_queue
from worker.cli.tables import print_table
from worker.queue.policy import QueuePolicy
from worker.settings import load_settings


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, type=QueueName())
@queue_options
@json_option
def pause(queues: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Let no job of these queues start until they are resumed. Running jobs go on, and producers may submit.

    A queue stays paused when workers or Redis restart; a Redis that was wiped has forgotten it. `rq suspend` stops all
    queues at once.

    \b
    Example:
      pagemill pause bulk
    """
    with opened_queue(load_settings(flags)) as connection:
        QueuePolicy(connection).pause(queues)
        _print_states(connection, queues, as_json=as_json)


@click.command()
@click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, type=QueueName())
@queue_options
@json_option
def resume(queues: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Let the jobs of paused queues start again.

    \b
    Example:
      pagemill resume bulk
    """
    with opened_queue(load_settings(flags)) as connection:
        QueuePolicy(connection).resume(queues)
        _print_states(connection, queues, as_json=as_json)


def _print_states(connection: redis.Redis, queues: tuple[str, ...], *, as_json: bool) -> None:
    paused = QueuePolicy(connection).paused()
    states = {name: "paused" if name in paused else "open" for name in dict.fromkeys(queues)}
    print_json(states) if as_json else print_table("Queues", ("queue", "state"), list(states.items()))
