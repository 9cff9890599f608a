"""Waiting out services that are away: a batch goes on without whoever follows it, and is there when they are back."""

import time
from collections.abc import Callable
from typing import TypeVar

from worker.errors import ServiceUnavailable

T = TypeVar("T")

PAUSE_SECONDS = 1.0  # between two tries


class Patience:
    """Tries again while SQL or Redis is away, for a bounded time in a row."""

    def __init__(
        self,
        limit_seconds: float,
        notice: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`notice` tells the user what is waited for, once each time. 0 seconds is no patience at all."""
        self._limit_seconds = limit_seconds
        self._notice = notice
        self._clock = clock
        self._sleep = sleep

    def call(self, action: Callable[[], T]) -> T:
        """Return what `action` does, which may be done again after it failed halfway.

        Raises ServiceUnavailable once a service was away for longer than the limit.
        """
        gone_at: float | None = None
        while True:
            try:
                result = action()
            except ServiceUnavailable as error:
                now = self._clock()
                if self._limit_seconds <= 0:
                    raise
                if gone_at is None:
                    gone_at = now
                    self._notice(f"{error}; this waits for {self._limit_seconds:g} s (--timeout) and then goes on")
                if now - gone_at >= self._limit_seconds:
                    raise ServiceUnavailable(
                        f"{error}; it was away for {self._limit_seconds:g} s (--timeout)"
                    ) from None
            else:
                if gone_at is not None:
                    self._notice(f"it is back after {self._clock() - gone_at:.0f} s; this goes on")
                return result
            self._sleep(PAUSE_SECONDS)


NO_PATIENCE = Patience(0.0)
