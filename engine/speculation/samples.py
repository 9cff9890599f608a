"""Measurements of one kind, of which the latest count."""

from collections import deque
from statistics import median_low

RECENT = 5  # measurements whose (lower) median counts: a busy moment of the machine is none
ENOUGH = 2  # measurements that count for something: a first step of some size may be slow only for being the first


class Samples:
    """The latest measurements of one kind."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=RECENT)
        self.middle = 0.0  # their median
        self.noted_at = 0  # the step of the last one

    @property
    def number(self) -> int:
        return len(self._latest)

    @property
    def is_enough(self) -> bool:
        return self.number >= ENOUGH

    def add(self, value: float, step: int) -> None:
        self.noted_at = step
        self.correct(value)

    def correct(self, value: float) -> None:
        """Take in what is no measurement, but tells that the latest ones are out of date."""
        self._latest.append(value)
        self.middle = median_low(self._latest)
