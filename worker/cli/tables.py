"""Tables for people: drawn by rich on a terminal, plain aligned columns elsewhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from worker.cli.output import for_display, is_terminal


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[bool] | None = None
) -> None:
    """Print a table. Columns of numbers are set to the right, or those that `right` says."""
    if is_terminal():
        Console().print(draw_table(title, columns, rows, right=right))
    else:
        click.echo(plain_table(title, columns, rows, right=right))


def terminal_width() -> int:
    """Return how many characters a line of the terminal has."""
    return Console().width


def print_fields(title: str, fields: Mapping[str, object]) -> None:
    """Print names and values, one pair a line."""
    print_table(title, ("field", "value"), list(fields.items()))


def draw_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[bool] | None = None
) -> Table:
    """Return a table for a terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name, is_right in zip(columns, right or _numeric_columns(columns, rows), strict=True):
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(for_display(format_value(value))) for value in row))
    return table


def plain_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[bool] | None = None
) -> str:
    """Return a table as text, one line for each row."""
    lines = [list(columns), *([" ".join(format_value(value).split()) for value in row] for row in rows)]
    numeric = right or _numeric_columns(columns, rows)
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    text = [f"{title}:"]
    for line in lines:
        cells = zip(line, widths, numeric, strict=True)
        padded = [cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells]
        text.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join(text)


def format_value(value: object) -> str:
    """Return a value as a person reads it: thousands separated, three significant decimals, "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, Enum):
        return str(value.value)
    return str(value)


def _numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    return [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(columns))]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
