"""How long a job waits before it is tried again: exponential back-off with full jitter, or what RQ's Retry asks for."""

import random
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_MAX_RETRIES = 2
LARGEST_EXPONENT = 64  # any back-off has reached its cap by then; more would overflow a float


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What a job asks for. `intervals`, in seconds, are of RQ's Retry; without any, the worker's back-off holds."""

    max_retries: int = DEFAULT_MAX_RETRIES
    intervals: tuple[float, ...] = ()

    def allows(self, retry_count: int) -> bool:
        """Tell whether a job that has spent `retry_count` retries has another."""
        return retry_count < self.max_retries


class Backoff:
    """Delays before retries. Full jitter keeps jobs that failed together from coming back together."""

    def __init__(self, base_seconds: float, cap_seconds: float, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns a number from 0 to 1."""
        self._base_seconds = base_seconds
        self._cap_seconds = cap_seconds
        self._draw = draw

    def seconds(self, policy: RetryPolicy, retry_count: int) -> float:
        """Return the delay before the retry that follows on `retry_count` earlier ones."""
        if policy.intervals:
            # As RQ counts: from the end, so that the first interval also serves the retries in excess of the list.
            left = policy.max_retries - retry_count
            return policy.intervals[max(0, len(policy.intervals) - left)]
        return self.jittered_seconds(retry_count)

    def jittered_seconds(self, exponent: int) -> float:
        """Return a random delay of at most base * 2**exponent, and at most the cap."""
        return self._draw() * min(self._cap_seconds, self._base_seconds * 2.0 ** min(exponent, LARGEST_EXPONENT))
