"""Which jobs a report is about, and what it has a row for each of."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from math import gcd
from typing import Any

from sqlalchemy import Label, SQLColumnExpression

from worker.sql.rollups.expressions import SECONDS_PER_DAY, SECONDS_PER_HOUR, epoch_seconds


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Which jobs a report is about; None takes all.

    `since` (UTC) takes the jobs that ended at or after it and those that have not ended; `until` (UTC) those that ended
    before it. `model` is the one that jobs asked for, or that served them.
    """

    since: datetime | None = None
    queue: str | None = None
    batch: str | None = None
    model: str | None = None
    until: datetime | None = None
    tenant: str | None = None

    @property
    def dimensions(self) -> dict[str, str]:
        """What roll-ups can be filtered by, by column."""
        asked = {"queue": self.queue, "model": self.model, "tenant": self.tenant}
        return {name: value for name, value in asked.items() if value is not None}


class Dimension(Enum):
    """What a report can have a row for each of. Hours and days are UTC."""

    QUEUE = "queue"
    MODEL = "model"
    TENANT = "tenant"
    BATCH = "batch"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A row for each span of so many seconds, from 1970 on, in which jobs ended."""

    seconds: int

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ValueError(f"seconds is {self.seconds}; it must be at least 1")


Grouping = Sequence[Dimension | Bucket]
GroupValue = str | datetime | None

_COLUMNS = {Dimension.QUEUE: "queue", Dimension.MODEL: "model", Dimension.TENANT: "tenant", Dimension.BATCH: "batch_id"}
_PERIODS = {Dimension.HOUR: SECONDS_PER_HOUR, Dimension.DAY: SECONDS_PER_DAY}


def asked_columns(chosen: ReportFilter, by: Grouping) -> set[str]:
    """Return the columns, times aside, that a table needs for the filter and the groups."""
    grouped = {_COLUMNS[each] for each in by if isinstance(each, Dimension) and each in _COLUMNS}
    return {*chosen.dimensions, *grouped} | ({"batch_id"} if chosen.batch is not None else set())


def period_of(by: Dimension | Bucket) -> int | None:
    """Return the seconds of a grouping by time, None for another."""
    return by.seconds if isinstance(by, Bucket) else _PERIODS.get(by)


def finest_period(by: Grouping) -> int | None:
    """Return the seconds of the longest period that each period is a whole number of; None without one."""
    periods = [period for each in by if (period := period_of(each)) is not None]
    return gcd(*periods) if periods else None


def group_labels(by: Grouping, columns: Any, ended: SQLColumnExpression[Any]) -> list[Label[Any]]:
    """Return an expression for each of `by`, over the columns of jobs or of a roll-up; `ended` is its time."""
    labels: list[Label[Any]] = []
    for number, each in enumerate(by):
        period = period_of(each)
        if period is not None:
            labels.append((epoch_seconds(ended) // period * period).label(f"group_{number}"))
        else:
            assert isinstance(each, Dimension), "a bucket is a period"
            labels.append(columns[_COLUMNS[each]].label(f"group_{number}"))
    return labels


def group_values(by: Grouping, row: Any) -> tuple[GroupValue, ...]:
    """Return a row's group: a text, a time or None for each of `by`."""
    values: list[GroupValue] = []
    for number, each in enumerate(by):
        value = row[f"group_{number}"]
        is_time = value is not None and period_of(each) is not None
        values.append(datetime.fromtimestamp(value, UTC) if is_time else value)
    return tuple(values)


def order_key(group: tuple[GroupValue, ...]) -> tuple[tuple[bool, str], ...]:
    """Return what groups are sorted by: times and names rising, what has none last."""
    return tuple((value is None, value.isoformat() if isinstance(value, datetime) else value or "") for value in group)
