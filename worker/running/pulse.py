"""The engine's pulse: when its loop last showed that it answers."""

import math
import time
from collections.abc import Callable


class Pulse:
    """Written by the engine's thread, read by any. A loop that hangs in a step, or has ended, lets it age."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._answered_at = clock()
        self._asked_at = -math.inf

    def note(self) -> None:
        """Note that the loop has gone round, whether it stepped or answered a command."""
        self._answered_at = self._clock()

    def ask(self) -> bool:
        """Note that the loop is to go round. Returns whether to tell it: not while it owes an earlier answer."""
        if self._asked_at > self._answered_at:
            return False
        self._asked_at = self._clock()
        return True

    @property
    def age_seconds(self) -> float:
        """Seconds since the loop last answered."""
        return self._clock() - self._answered_at
