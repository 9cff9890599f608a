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
from worker.cli.output import json_text, message
from worker.cli.tables import plain_table, print_table
from worker.errors import PagemillError
from worker.reports.csv_form import to_csv
from worker.reports.parquet_form import to_parquet
from worker.reports.sparklines import sparkline
from worker.reports.tables import ReportTable
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

    def _write_text(self, whole: ReportTable) -> None:
        table = whole.for_people()
        encoding = "utf-8" if self.path is not None else sys.stdout.encoding
        columns = [column.title for column in table.columns]
        rows = table.readable_rows()
        right = [column.unit is not Unit.TEXT for column in table.columns]
        if table.trend is not None:
            columns.append(table.trend.title)
            rows = [[*row, sparkline(line, encoding)] for row, line in zip(rows, table.trend.lines, strict=True)]
            right.append(False)
        if table.is_record:
            rows = [list(pair) for pair in zip(columns, *rows, strict=True)]
            columns, right = ["field", "value"], [False, False]
        if not rows:
            message(f"{table.title}: nothing to report")
        if self.path is not None:
            self.write("\n".join([plain_table(table.title, columns, rows, right=right), *table.notes]) + "\n")
            return
        print_table(table.title, columns, rows, right=right)
        for note in table.notes:
            click.echo(note)


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
    if path is None and chosen in (Format.PARQUET, Format.HTML) and sys.stdout.isatty():
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
