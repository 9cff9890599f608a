"""`pagemill ledger`: where the workers' time went, and whether it adds up."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from worker.cli.options import Since, json_option, store_options
from worker.cli.output import print_json
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.settings import load_settings
from worker.sql.balance import WorkerBalance


@click.command()
@click.option("--since", type=Since(), help="Workers that were heard of since: 1h, 7d, or an ISO date or time.")
@store_options
@json_option
def ledger(since: datetime | None, as_json: bool, **flags: Any) -> None:
    """Show where each worker's time went since it began, and what of it its attempts were charged with.

    Wall time is what the jobs' attempts were charged, what is unattributed (attempts that run now, or whose worker was
    killed), and the worker's own: loading, idle, overhead. KV block-seconds likewise: held by attempts, cached, free.
    The currency's columns need the setting price_per_engine_hour.

    \b
    Examples:
      pagemill ledger
      pagemill ledger --since 1d --json
    """
    with opened_store(load_settings(flags)) as store:
        balances = store.balances(since)
    if as_json:
        print_json(balances)
    else:
        _print_time(balances)
        _print_blocks(balances)


def _print_time(balances: Sequence[WorkerBalance]) -> None:
    print_table(
        "Seconds",
        ("worker", "wall", "attempts", "unattributed", "idle", "loading", "overhead", "wasted", "busy", "cost"),
        [
            (
                balance.worker,
                balance.wall_seconds,
                balance.attempt_engine_seconds,
                _settled(balance.unattributed_engine_seconds),
                balance.idle_seconds,
                balance.loading_seconds,
                balance.overhead_seconds,
                balance.wasted_engine_seconds,
                _share(balance.engine_seconds, balance.wall_seconds),
                None if balance.cost is None else f"{balance.cost:.3g} {balance.currency}",
            )
            for balance in balances
        ],
    )


def _print_blocks(balances: Sequence[WorkerBalance]) -> None:
    print_table(
        "KV block-seconds",
        ("worker", "blocks", "attempts", "unattributed", "cached", "free", "held"),
        [
            (
                balance.worker,
                balance.num_blocks,
                balance.attempt_kv_block_seconds,
                _settled(balance.kv_block_seconds_held - balance.attempt_kv_block_seconds),
                balance.kv_block_seconds_cached,
                balance.kv_block_seconds_free,
                _share(balance.kv_block_seconds_held, _all_blocks(balance)),
            )
            for balance in balances
        ],
    )


def _all_blocks(balance: WorkerBalance) -> float:
    return balance.kv_block_seconds_held + balance.kv_block_seconds_cached + balance.kv_block_seconds_free


def _settled(difference: float) -> float:
    """Return a difference of sums of seconds without what rounding left of it."""
    return round(difference, 6) + 0.0  # not -0


def _share(part: float, whole: float) -> str | None:
    return f"{part / whole:.1%}" if whole else None
