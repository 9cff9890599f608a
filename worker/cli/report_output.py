"""How a report leaves: its format, the file it goes to, and what it looks like on a terminal."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from worker.cli.options import json_option
from worker.cli.output import is_terminal, json_text, message
from worker.cli.tables import plain_table, print_table, terminal_width
from worker.errors import PagemillError
from worker.reports.csv_form import to_csv
from worker.reports.parquet_form import to_parquet
from worker.reports.sparklines import sparkline
from worker.reports.tables import ReportTable, Trend
from worker.reports.units import Unit

P = ParamSpec("P")
R = TypeVar("R")


class Format(StrEnum):
    """What a report may be written as."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    HTML = "html"


SUFFIXES = {
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".html": Format.HTML,
    ".htm": Format.HTML,
}

COLUMN_GAP = 3  # characters between two columns of a drawn table
MIN_SPARKLINE = 10  # characters; a shorter one says nothing


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a report goes, and in what form. Without a path it is standard output."""

    format: Format
    path: Path | None

    def write(self, content: str | bytes) -> None:
        """Write a whole report; a file is there complete or not at all. Raises PagemillError where it cannot be."""
        if self.path is not None:
            _replace(self.path, content.encode() if isinstance(content, str) else content)
        elif isinstance(content, bytes):
            click.echo(content, nl=False)
        else:
            click.echo(content.rstrip("\n"), color=True)  # click would take escape sequences out of exact text

    def write_table(self, table: ReportTable, document: object) -> None:
        """Write a report as anything but HTML; `document` is what it is in JSON."""
        match self.format:
            case Format.JSON:
                self.write(f"{json_text(document)}\n")
            case Format.CSV:
                self.write(to_csv(table))
            case Format.PARQUET:
                self.write(to_parquet(table))
            case _:
                self._write_text(table)

    def _write_text(self, table: ReportTable) -> None:
        encoding = "utf-8" if self.path is not None else sys.stdout.encoding
        width = terminal_width() if self.path is None and is_terminal() else None
        text = _as_text(table.for_people(), encoding, width)
        if not table.rows:
            message(f"{table.title}: nothing to report")
        if self.path is not None:
            lines = plain_table(table.title, text.columns, text.rows, right=text.right)
            self.write("\n".join([lines, *table.notes]) + "\n")
            return
        print_table(table.title, text.columns, text.rows, right=text.right)
        for note in table.notes:
            click.echo(note)


@dataclass(frozen=True, slots=True)
class _Text:
    columns: list[str]
    rows: list[list[str]]
    right: list[bool]


def _as_text(table: ReportTable, encoding: str, width: int | None) -> _Text:
    """Return a table's texts, with a sparkline for each row where `width` characters have room for it."""
    columns = [column.title for column in table.columns]
    rows = table.readable_rows()
    right = [column.unit is not Unit.TEXT for column in table.columns]
    trend = _trend_within(table, columns, rows, width)
    if trend is not None:
        columns.append(trend.title)
        rows = [[*row, sparkline(line, encoding)] for row, line in zip(rows, trend.lines, strict=True)]
        right.append(False)
    if table.is_record:
        rows = [list(pair) for pair in zip(columns, *rows, strict=True)]
        columns, right = ["field", "value"], [False, False]
    return _Text(columns, rows, right)


def _trend_within(table: ReportTable, columns: list[str], rows: list[list[str]], width: int | None) -> Trend | None:
    if table.trend is None or width is None:
        return table.trend
    cells = list(zip(columns, *rows, strict=True))
    longest = [max(len(cell) for cell in column) for column in cells]
    taken = max(longest) + COLUMN_GAP if table.is_record else sum(length + COLUMN_GAP for length in longest)
    room = width - taken - COLUMN_GAP
    return table.trend.within(room) if room >= MIN_SPARKLINE else None


def output_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that `destination` reads."""
    formats = click.Choice([each.value for each in Format])
    command = json_option(command)
    command = click.option(
        "-o",
        "--output",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write to a file.",
    )(command)
    return click.option(
        "--format", "form", type=formats, help="The format; unset, FILE's ending tells, and a table is printed."
    )(command)


def destination(form: str | None, as_json: bool, path: Path | None) -> Destination:
    """Return where a report goes. Raises PagemillError for flags that contradict each other and for binary data that
    would go to a terminal."""
    if as_json and form not in (None, Format.JSON):
        raise PagemillError(f"--json contradicts --format {form}")
    by_name = SUFFIXES.get(path.suffix.lower()) if path is not None else None
    chosen = Format.JSON if as_json else Format(form) if form is not None else by_name or Format.TABLE
    if path is None and chosen in (Format.PARQUET, Format.HTML) and is_terminal():
        raise PagemillError(f"--format {chosen.value} is not for a terminal: name a file with -o")
    return Destination(chosen, path)


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if path.exists() and not path.is_file():  # a pipe, or /dev/stdout
            path.write_bytes(content)
            return
        try:
            partial.write_bytes(content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise PagemillError(f"cannot write {path}: {error.strerror}") from None
