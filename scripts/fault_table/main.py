"""`scripts/faults`: the table of faults with real processes, signals and servers, and the count of what was lost."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from scripts.fault_table.nursery import Nursery
from scripts.fault_table.redis_server import find_servers
from scripts.fault_table.report import print_json, print_table
from scripts.fault_table.rows import RowResult, Scale, Trial, run_row
from scripts.fault_table.table import ROWS
from scripts.fault_table.tiny_model import make_tiny_model
from scripts.fault_table.world import Worlds

FULL_SEEDS = 50
QUICK_SEEDS = 2


@click.command()
@click.option("--quick", is_flag=True, help="Shorter outages and fewer seeds: all rows in about three minutes.")
@click.option("--row", "numbers", type=click.IntRange(1, 19), multiple=True, help="Only this row; may be repeated.")
@click.option("--seeds", type=click.IntRange(1, 1000), help=f"Seeds of row 1; {FULL_SEEDS}, or {QUICK_SEEDS} if quick.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a row, no table.")
def main(quick: bool, numbers: tuple[int, ...], seeds: int | None, as_json: bool) -> None:
    """Run the fault table: 0 lost in each row, or exit code 1.

    \b
    Examples:
      scripts/faults --quick
      scripts/faults --row 1 --seeds 200
    """
    scale = Scale(is_quick=quick, num_seeds=seeds or (QUICK_SEEDS if quick else FULL_SEEDS))
    results = run_rows(numbers or tuple(row.number for row in ROWS), scale)
    if as_json:
        print_json(results)
    else:
        print_table(results)
    must_have_all = os.environ.get("CI") == "true"
    right = all(result.is_right or (result.missing is not None and not must_have_all) for result in results)
    sys.exit(0 if right else 1)


def run_rows(numbers: tuple[int, ...], scale: Scale) -> list[RowResult]:
    """Run rows one after the other, in the table's order."""
    results = []
    with tempfile.TemporaryDirectory(prefix="pagemill-faults-") as name:
        folder = Path(name)
        worlds = Worlds(folder, make_tiny_model(folder / "model"), Nursery())
        try:
            for row in ROWS:
                if row.number in numbers:
                    say = _reporter(row.number, row.fault)
                    result = run_row(row, Trial(worlds, find_servers(), scale, say))
                    say("right" if result.is_right else result.missing or "; ".join(result.problems))
                    results.append(result)
        finally:
            worlds.close()
    return results


def _reporter(number: int, fault: str) -> Callable[[str], None]:
    def say(text: str) -> None:
        click.echo(f"row {number:2}, {fault}: {text}", err=True)

    return say


if __name__ == "__main__":
    main()
