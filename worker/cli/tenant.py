"""`pagemill tenant`: how much of the workers each tenant may have."""

from typing import Any

import click

from worker.cli.options import json_option, queue_options
from worker.cli.output import message, print_json
from worker.cli.queues import opened_queue
from worker.cli.tables import print_table
from worker.queue.policy import EVERYONE, QueuePolicy, TenantLimit, TenantStatus
from worker.settings import load_settings

COLUMNS = ("tenant", "max running", "per minute", "running", "started", "parked")


@click.group()
def tenant() -> None:
    """Limit how many jobs of a tenant run at once, or start within a minute, over all workers.

    Jobs above a limit are parked and come back by themselves, in their order. Limits are kept in Redis: one that was
    wiped has forgotten them.

    \b
    Example:
      pagemill tenant limit acme --max-running 8
    """


@tenant.command()
@click.argument("name")
@click.option("--max-running", type=int, help="Jobs that may run at once.")
@click.option(
    "--per-minute", type=int, help="Jobs that may start in any 60 seconds; one that starts again counts again."
)
@queue_options
def limit(name: str, max_running: int | None, per_minute: int | None, **flags: Any) -> None:
    """Set the limit of the tenant NAME, or with '*' of each tenant that has none of its own.

    It replaces the one that was there. Jobs that run already count against it, and go on.

    \b
    Examples:
      pagemill tenant limit acme --max-running 8 --per-minute 600
      pagemill tenant limit '*' --max-running 32
    """
    new = TenantLimit(max_running=max_running, per_minute=per_minute)
    with opened_queue(load_settings(flags)) as connection:
        QueuePolicy(connection).limit(name, new)


@tenant.command("list")
@queue_options
@json_option
def list_tenants(as_json: bool, **flags: Any) -> None:
    """List the tenants that have limits, or jobs that count against one, or that wait for one.

    \b
    Example:
      pagemill tenant list
    """
    with opened_queue(load_settings(flags)) as connection:
        tenants = QueuePolicy(connection).tenants()
    print_json(tenants) if as_json else print_table("Tenants", COLUMNS, [_row(status) for status in tenants])


@tenant.command()
@click.argument("name")
@queue_options
def clear(name: str, **flags: Any) -> None:
    """Take the limit of the tenant NAME away; its parked jobs may start. '*' is the one of all others.

    \b
    Example:
      pagemill tenant clear acme
    """
    with opened_queue(load_settings(flags)) as connection:
        had_limit = QueuePolicy(connection).clear(name)
    if not had_limit:
        message(f"there was no limit for {'all tenants' if name == EVERYONE else name}")


def _row(status: TenantStatus) -> tuple[object, ...]:
    limit = status.limit
    limits = (None, None) if limit is None else (limit.max_running, limit.per_minute)
    counts = (None, None, None) if status.tenant == EVERYONE else (status.running, status.started, status.num_parked)
    return (status.tenant, *limits, *counts)
