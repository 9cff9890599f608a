"""A wall clock that is off by the seconds that a file says, for a Python process that has this folder on its path.

Python imports `sitecustomize` before anything else; whatever asks `time` or `datetime` afterwards, gets this clock.
"""

import datetime
import os
import time
from pathlib import Path
from typing import Any, Self

REAL_TIME = time.time
REAL_DATETIME = datetime.datetime


def offset_seconds() -> float:
    """Return by how much the clock is ahead."""
    return float(Path(os.environ["FAULTS_CLOCK_OFFSET_FILE"]).read_text() or 0)


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, REAL_DATETIME)


class MovedDatetime(REAL_DATETIME, metaclass=_AnyDatetime):
    """`datetime.datetime` on the moved clock."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        moved: Any = REAL_DATETIME.fromtimestamp(moved_time(), tz)
        return moved  # type: ignore[no-any-return]

    @classmethod
    def utcnow(cls) -> Self:
        moved: Any = REAL_DATETIME.fromtimestamp(moved_time(), datetime.UTC).replace(tzinfo=None)
        return moved  # type: ignore[no-any-return]


def moved_time() -> float:
    """`time.time` on the moved clock."""
    return REAL_TIME() + offset_seconds()


time.time = moved_time
time.time_ns = lambda: int(moved_time() * 1e9)
datetime.datetime = MovedDatetime  # type: ignore[misc]
