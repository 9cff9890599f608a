"""A report as a table: columns with units, rows of plain values, a line over time for each row."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_type_hints

from worker.reports.timeline import step_words
from worker.reports.units import Unit, readable, unit_of

Value = str | int | float | datetime | None


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is the machine formats' and ends in the unit where it has one; `title` is what people read."""

    name: str
    title: str
    unit: Unit
    is_whole: bool = False  # its values are integers
    is_shown: bool = True  # to people; machine formats have all


@dataclass(frozen=True, slots=True)
class Trend:
    """One figure over time, for a line beside each row: evenly spaced, None where nothing ended."""

    figure: str  # what it shows, in words
    step_s: int
    lines: tuple[tuple[float | None, ...], ...]  # one for each of the table's rows

    @property
    def title(self) -> str:
        """What it shows and how wide a step is."""
        return f"{self.figure} per {step_words(self.step_s)}"

    def within(self, width: int) -> "Trend":
        """Return the same lines in at most `width` steps, which are the means of those they are made of."""
        factor = max((math.ceil(len(line) / width) for line in self.lines), default=1)
        lines = tuple(tuple(_mean(line[at : at + factor]) for at in range(0, len(line), factor)) for line in self.lines)
        return Trend(self.figure, self.step_s * factor, lines)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """What one report says. Every row has a value for every column; None is unknown."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    trend: Trend | None = None
    is_record: bool = False  # one row that people read from top to bottom
    notes: tuple[str, ...] = ()

    def for_people(self) -> "ReportTable":
        """Return the table without the columns that only machines care for."""
        kept = [at for at, column in enumerate(self.columns) if column.is_shown]
        return dataclasses.replace(
            self,
            columns=tuple(self.columns[at] for at in kept),
            rows=tuple(tuple(row[at] for at in kept) for row in self.rows),
        )

    def readable_rows(self) -> list[list[str]]:
        """Return the rows as people read them."""
        metric = next((at for at, column in enumerate(self.columns) if column.name == "metric"), None)
        return [[self._readable(row, at, metric) for at in range(len(self.columns))] for row in self.rows]

    def records(self) -> list[dict[str, Value]]:
        """Return the rows by column name, as machine formats have them."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def column(self, name: str) -> tuple[Value, ...]:
        """Return one column's values, from the first row to the last."""
        at = [column.name for column in self.columns].index(name)
        return tuple(row[at] for row in self.rows)

    def _readable(self, row: tuple[Value, ...], at: int, metric: int | None) -> str:
        unit = self.columns[at].unit
        if at == metric:
            return title_of(str(row[at]))
        if unit is Unit.BY_METRIC and metric is not None:
            unit = unit_of(str(row[metric]))
        return readable(row[at], unit)


HIDDEN_UNITS = ("_ms", "_at", "_s", "_seconds")
TITLES = {  # where the name is too long, or not what people call it
    "kv_block_seconds_limit": "if reserved",
    "kv_block_seconds_share": "shared blocks split",
    "saved_against_limit_block_seconds": "saved by paging",
    "saved_against_limit_share": "paging saved",
    "saved_by_sharing_block_seconds": "saved by sharing",
    "saved_by_sharing_share": "sharing saved",
    "count": "jobs",
}
FOR_MACHINES = frozenset({"relative_error", "difference"})  # people read a note, and the change in percent
GROUP = "group"  # the field of a row that tells what it is about


def columns_of(row_type: type[Any], *, by_metric: bool = False) -> tuple[Column, ...]:
    """Return a column for each field of a frozen dataclass but its group, with the unit that the field's name tells.

    `by_metric` says that the row has a field `metric`, whose value tells the unit of its fractional fields.
    """
    hints = get_type_hints(row_type)
    columns = []
    for field in dataclasses.fields(row_type):
        if field.name == GROUP:
            continue
        kinds = _kinds(hints[field.name])
        unit = Unit.TEXT if str in kinds else unit_of(field.name)
        if by_metric and float in kinds and unit is Unit.COUNT:
            unit = Unit.BY_METRIC
        columns.append(
            Column(
                field.name,
                title_of(field.name),
                unit,
                is_whole=kinds.isdisjoint({float, str}),
                is_shown=field.name not in FOR_MACHINES,
            )
        )
    return tuple(columns)


def title_of(name: str) -> str:
    """Return a figure's name as people call it, without the unit, which the values show: "ttft", "output tokens"."""
    if name in TITLES:
        return TITLES[name]
    words = name.replace("completion_tokens", "output_tokens").replace("_per_s", "_rate")
    if "block_seconds" not in words:
        words = next((words.removesuffix(unit) for unit in HIDDEN_UNITS if words.endswith(unit)), words)
    return words.replace("_", " ")


def rows_of(rows: Sequence[Any], columns: Sequence[Column]) -> tuple[tuple[Value, ...], ...]:
    """Return dataclass rows as values: their group first, then a field for each column."""
    return tuple((*getattr(row, GROUP, ()), *(getattr(row, column.name) for column in columns)) for row in rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _kinds(hint: Any) -> set[type]:
    return set(getattr(hint, "__args__", (hint,)))
