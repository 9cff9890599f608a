"""How long steps take and how much they hold, noted by the engine's thread at the price of an append."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from worker.metrics.counting import Histogram
from worker.metrics.job_tally import TOKEN_SECONDS, TOKENS

MAX_UNREAD_STEPS = 10_000  # a minute or more of quick steps; the oldest go
REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Step:
    """One step that went well."""

    seconds: float
    num_requests: int
    num_tokens: int


class StepLog:
    """Steps that nobody has read yet. One thread notes them, without a lock; the reader counts them."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=MAX_UNREAD_STEPS)
        self._seconds = Histogram("pagemill_engine_step_seconds", "A step of the engine", TOKEN_SECONDS)
        self._requests = Histogram("pagemill_engine_step_requests", "Requests that a step computes", REQUESTS)
        self._tokens = Histogram("pagemill_iteration_tokens", "Tokens that a step computes", TOKENS)

    def note(self, step: Step) -> None:
        """Take a step; returns at once."""
        self._steps.append(step)

    def families(self) -> Iterator[Metric]:
        """Count what was noted since the last time, and yield all that was counted."""
        steps = list(self._take())
        self._seconds.add(step.seconds for step in steps)
        self._requests.add(step.num_requests for step in steps)
        self._tokens.add(step.num_tokens for step in steps)
        for histogram in (self._seconds, self._requests, self._tokens):
            yield histogram.family()

    def _take(self) -> Iterator[Step]:
        try:
            while True:
                yield self._steps.popleft()
        except IndexError:
            return
