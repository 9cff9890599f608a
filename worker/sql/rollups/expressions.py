"""SQL that each database words in its own way: periods of time, buckets of a histogram, lists.

A histogram's buckets grow by `GROWTH`, so that what stands for a bucket is within `RELATIVE_ERROR` of each value in it.
"""

import math
from typing import Any

from sqlalchemy import JSON, BigInteger, ColumnElement, Double, case, cast, func
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from worker.sql.tables import UtcDateTime

RELATIVE_ERROR = 0.01
GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
SMALLEST = 0.001  # what is less shares a bucket with it: a microsecond, a thousandth of a block-second
SECONDS_PER_HOUR = 3600
SECONDS_PER_DAY = 86_400


class hour_of(FunctionElement[Any]):
    """The start of the hour, UTC, that a time is in."""

    type = UtcDateTime()
    inherit_cache = True


class day_of(FunctionElement[Any]):
    """The start of the day, UTC, that a time is in."""

    type = UtcDateTime()
    inherit_cache = True


class epoch_seconds(FunctionElement[Any]):
    """Whole seconds from 1970 to a time."""

    type = BigInteger()
    inherit_cache = True


class list_of(FunctionElement[Any]):
    """The values of a group's rows, in JSON. The lists of one group have their rows in the same order."""

    type = JSON()
    inherit_cache = True


@compiles(hour_of, "sqlite")
def _hour_in_sqlite(element: hour_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"strftime('%Y-%m-%d %H:00:00.000000', {compiler.process(element.clauses, **options)})"


@compiles(hour_of, "postgresql")
def _hour_in_postgresql(element: hour_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"date_trunc('hour', {compiler.process(element.clauses, **options)}, 'UTC')"


@compiles(day_of, "sqlite")
def _day_in_sqlite(element: day_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"strftime('%Y-%m-%d 00:00:00.000000', {compiler.process(element.clauses, **options)})"


@compiles(day_of, "postgresql")
def _day_in_postgresql(element: day_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"date_trunc('day', {compiler.process(element.clauses, **options)}, 'UTC')"


@compiles(epoch_seconds, "sqlite")
def _epoch_in_sqlite(element: epoch_seconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(strftime('%s', {compiler.process(element.clauses, **options)}) AS INTEGER)"


@compiles(epoch_seconds, "postgresql")
def _epoch_in_postgresql(element: epoch_seconds, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(floor(date_part('epoch', {compiler.process(element.clauses, **options)})) AS BIGINT)"


@compiles(list_of, "sqlite")
def _list_in_sqlite(element: list_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_group_array({compiler.process(element.clauses, **options)})"


@compiles(list_of, "postgresql")
def _list_in_postgresql(element: list_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_agg({compiler.process(element.clauses, **options)})"


def bucket_of(value: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the bucket that a value is in: bucket b holds GROWTH**b up to, not including, GROWTH**(b + 1)."""
    raised = case((value > SMALLEST, cast(value, Double)), else_=SMALLEST)
    return cast(func.floor(func.ln(raised) / math.log(GROWTH)), BigInteger)


def value_in(bucket: int) -> float:
    """Return the value that stands for a bucket: no value in it differs by more than RELATIVE_ERROR of itself.

    For the bucket of SMALLEST, which holds all that is less, it is 0.
    """
    if bucket <= math.floor(math.log(SMALLEST) / math.log(GROWTH)):
        return 0.0
    return 2 * GROWTH ** (bucket + 1) / (GROWTH + 1)
