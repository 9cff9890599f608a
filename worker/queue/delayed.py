"""The delayed jobs of a worker's queues: those that RQ's producers put off, and those that wait out a back-off."""

import logging
import time
from collections.abc import Sequence

from worker.queue.job_queue import JobQueue

LOOK_SECONDS = 1.0  # longest time between two looks for jobs that are due: any worker may delay some
SHORTEST_LOOK_SECONDS = 0.05

logger = logging.getLogger(__name__)


class DelayedJobs:
    """Puts delayed jobs into their queues when they are due. On the main thread; what is due is Redis's clock to say.

    Any number of workers may do the same: each job is moved once.
    """

    def __init__(self, job_queue: JobQueue, queues: Sequence[str], reach_seconds: float) -> None:
        """`reach_seconds` is how far ahead a burst looks; see `in_reach`."""
        self._queue = job_queue
        self._queues = tuple(queues)
        self._reach_seconds = reach_seconds
        self._next_look = time.monotonic()
        self._is_awaited = False  # by a burst that has nothing else to do

    def enqueue_due(self) -> None:
        """Move what is due, if it is time to look again. Raises ServiceUnavailable or TryLater."""
        if time.monotonic() >= self._next_look:
            self._look()

    def in_reach(self) -> bool:
        """Tell whether a delayed job is due within reach, so that a burst waits for it: every back-off is, and what a
        producer put off until tomorrow is not. Raises as `enqueue_due`."""
        seconds = self._look()
        is_in_reach = seconds is not None and seconds <= self._reach_seconds
        if is_in_reach and seconds and not self._is_awaited:
            logger.info("nothing is left but delayed jobs; the next one is due in %.1f s", seconds)
        self._is_awaited = is_in_reach
        return is_in_reach

    def _look(self) -> float | None:
        """Move what is due. Returns the seconds until a delayed job needs a worker, 0 where some do now, None for
        never."""
        self._next_look = time.monotonic() + LOOK_SECONDS  # also where Redis does not answer
        due = self._queue.enqueue_due(self._queues)
        seconds = 0.0 if due.moved else due.next_in_seconds
        if due.next_in_seconds is not None:
            self._next_look = time.monotonic() + min(max(due.next_in_seconds, SHORTEST_LOOK_SECONDS), LOOK_SECONDS)
        return seconds
