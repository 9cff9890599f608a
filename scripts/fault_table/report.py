"""The fault table as people and programs read it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields

from rich.console import Console
from rich.table import Table

from scripts.fault_table.rows import RowResult
from scripts.fault_table.tally import Tally

LINE_WIDTH = 140  # where the output is no terminal
COLUMNS = [field.name for field in fields(Tally)]


def print_table(results: Sequence[RowResult]) -> None:
    """Print a table, and below it what is wrong and what is worth knowing."""
    table = Table()
    table.add_column("row", justify="right", no_wrap=True)
    table.add_column("fault")
    for column in (*COLUMNS, "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    for result in results:
        numbers = (str(getattr(result.tally, column)) for column in COLUMNS)
        table.add_row(str(result.number), result.fault, *numbers, f"{result.seconds:.1f}", _verdict(result))
    console = Console(width=None if sys.stdout.isatty() else LINE_WIDTH)
    console.print(table)
    for result in results:
        if result.problems:
            console.print(f"row {result.number}: right would be: {result.outcome}", markup=False, highlight=False)
        for text in (*result.problems, *([result.missing] if result.missing else []), *result.notes):
            console.print(f"row {result.number}: {text}", markup=False, highlight=False)


def print_json(results: Sequence[RowResult]) -> None:
    """Print one JSON object a row."""
    for result in results:
        print(json.dumps({**asdict(result), "is_right": result.is_right}))


def _verdict(result: RowResult) -> str:
    if result.missing is not None:
        return "[yellow]skipped"
    return "[green]right" if result.is_right else "[red]WRONG"
