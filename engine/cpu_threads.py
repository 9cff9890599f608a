"""How many threads a step on the CPU uses: fewer where others want the cores as well.

Torch's threads meet at a barrier after every operator. A thread whose core is taken by another process keeps all the
others waiting for milliseconds, a thousand times a step: on two cores with other work, two threads were seen to be 28
times slower than one. A thread that waits spins, so on a machine of its own the process uses all the time there is; a
share well below that tells that it had to wait for a core.

A thread given up for nothing is half of a machine of two cores, so nothing that lasts a moment gives one up, and one
given up by mistake comes back soon; each time that one is taken back too early doubles the time until the next.
"""

import math
import time
from collections.abc import Callable

import torch

CROWDED = 0.8  # share of the threads' time below which there is one thread too many
ROOMY = 0.95  # share from which one more is tried
MEMORY_SECONDS = 0.3  # of steps that the share is of, those before counting less and less
PATIENCE_SECONDS = 0.5  # between a change and one upwards; doubles whenever one upwards was a mistake
LONGEST_PATIENCE_SECONDS = 60.0


class ThreadGovernor:
    """Sets torch's threads for each step, between 1 and `most`; between steps they are `most`. For the one thread that
    runs the model."""

    def __init__(
        self,
        most: int,
        *,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        wall: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.process_time,
    ) -> None:
        """`wall` and `busy` return seconds: of the clock, and of CPU time that the process used."""
        self.threads = most
        self._most = most
        self._set_threads = set_threads
        self._wall = wall
        self._busy = busy
        self._share = 1.0
        self._changed_at = wall()
        self._grew = False
        self._patience = PATIENCE_SECONDS
        self._started = (0.0, 0.0)

    def begin(self) -> None:
        """Note the start of a step."""
        if self._most > 1:
            self._set_threads(self.threads)
        self._started = self._wall(), self._busy()

    def end(self) -> None:
        """Judge the step that ends."""
        elapsed, used = self._wall() - self._started[0], self._busy() - self._started[1]
        if self._most == 1:
            return
        self._set_threads(self._most)
        if elapsed <= 0:
            return
        share = min(1.0, used / elapsed / self.threads)
        self._share += (1.0 - math.exp(-elapsed / MEMORY_SECONDS)) * (share - self._share)
        waited = self._wall() - self._changed_at
        if self._share < CROWDED and self.threads > 1:
            if self._grew and waited < self._patience:
                self._patience = min(2 * self._patience, LONGEST_PATIENCE_SECONDS)
            self._change(self.threads - 1)
        elif self._share > ROOMY and self.threads < self._most and waited > self._patience:
            self._change(self.threads + 1)
        elif self.threads == self._most and waited > LONGEST_PATIENCE_SECONDS:
            self._patience = PATIENCE_SECONDS

    def _change(self, threads: int) -> None:
        self._grew = threads > self.threads
        self.threads = threads
        # One more has to do well from its first step on: where it does not, that step takes long.
        self._share = CROWDED if self._grew else (CROWDED + ROOMY) / 2
        self._changed_at = self._wall()
