"""`scripts/faults`: the table of faults with real processes, signals and servers, and the count of what was lost."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from scripts.fault_table.nursery import Nursery
from scripts.fault_table.redis_server import find_servers
from scripts.fault_table.report import print_json, print_table
from scripts.fault_table.rows import Row, RowResult, Scale, Trial, run_row
from scripts.fault_table.soak import soak
from scripts.fault_table.table import ROWS
from scripts.fault_table.tiny_model import make_tiny_model
from scripts.fault_table.world import Worlds

FULL_SEEDS = 50
QUICK_SEEDS = 2


@click.command()
@click.option("--quick", is_flag=True, help="Shorter outages and fewer seeds: all rows in about three minutes.")
@click.option("--row", "numbers", type=click.IntRange(1, 19), multiple=True, help="Only this row; may be repeated.")
@click.option("--seeds", type=click.IntRange(1, 1000), help=f"Seeds of row 1; {FULL_SEEDS}, or {QUICK_SEEDS} if quick.")
@click.option("--soak", "minutes", type=click.FloatRange(0.1, 100_000), help="Random faults for so long, no table.")
@click.option("--seed", type=int, help="Of the soak; without, one from the clock.")
@click.option("--at-once", type=click.IntRange(1, 19), default=4, show_default=True, help="Rows that run side by side.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a row, no table.")
def main(
    quick: bool,
    numbers: tuple[int, ...],
    seeds: int | None,
    minutes: float | None,
    seed: int | None,
    at_once: int,
    as_json: bool,
) -> None:
    """Run the fault table: 0 lost in each row, or exit code 1.

    \b
    Examples:
      scripts/faults --quick
      scripts/faults --row 1 --seeds 200
      scripts/faults --soak 30
    """
    scale = Scale(is_quick=quick, num_seeds=seeds or (QUICK_SEEDS if quick else FULL_SEEDS))
    if minutes is None:
        rows: Sequence[Row] = [row for row in ROWS if not numbers or row.number in numbers]
    else:
        rows = [soak(60 * minutes, int(time.time()) if seed is None else seed)]
    results = run_rows(rows, scale, at_once)
    if as_json:
        print_json(results)
    else:
        print_table(results)
    must_have_all = os.environ.get("CI") == "true"
    right = all(result.is_right or (result.missing is not None and not must_have_all) for result in results)
    sys.exit(0 if right else 1)


def run_rows(rows: Sequence[Row], scale: Scale, num_at_once: int) -> list[RowResult]:
    """Run rows, those without a time limit some at once; return their results in the table's order."""
    with tempfile.TemporaryDirectory(prefix="pagemill-faults-") as name:
        folder = Path(name)
        worlds = Worlds(folder, make_tiny_model(folder / "model"), Nursery())

        def run(row: Row) -> RowResult:
            say = _reporter(row)
            result = run_row(row, Trial(worlds, find_servers(), scale, say))
            say("right" if result.is_right else result.missing or "; ".join(result.problems))
            return result

        try:
            results = [run(row) for row in rows if row.is_timed]
            with ThreadPoolExecutor(num_at_once) as pool:
                results += pool.map(run, [row for row in rows if not row.is_timed])
        finally:
            worlds.close()
    return sorted(results, key=lambda result: result.number)


def _reporter(row: Row) -> Callable[[str], None]:
    def say(text: str) -> None:
        click.echo(f"row {row.number:2}, {row.fault}: {text}", err=True)

    return say


if __name__ == "__main__":
    main()
