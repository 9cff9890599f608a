"""RQ's scheduler within the worker's own process: a worker never forks, since a GPU does not survive that."""

import time
from typing import Any

from rq.scheduler import RQScheduler

from worker.queue.job_queue import JobQueue

TICK_SECONDS = 1.0


class InProcessScheduler(RQScheduler):
    """What RQ's tools see of a scheduler: its locks, so that no other one does the same, and its entry."""

    def start(self) -> None:
        """Appear, and start no process."""
        self._status = self.Status.STARTED
        self.register_birth()


class Schedule:
    """The delayed jobs of the queues whose locks a scheduler has. On the main thread."""

    def __init__(self, scheduler: InProcessScheduler, job_queue: JobQueue) -> None:
        self._scheduler = scheduler
        self._queue = job_queue
        self._next_tick = time.monotonic()

    def enqueue_due(self) -> None:
        """Move what is due, if it is time to look again. Raises ServiceUnavailable, TryLater or RQ's errors."""
        if time.monotonic() < self._next_tick:
            return
        self._next_tick = time.monotonic() + TICK_SECONDS
        if self._scheduler.should_reacquire_locks:
            self._scheduler.acquire_locks()
        locked: Any = self._scheduler.acquired_locks
        if locked:
            self._scheduler.heartbeat()
            self._queue.enqueue_due(sorted(locked))

    def in_reach(self) -> bool:
        """A burst waits for none: RQ's own looks once, when it begins."""
        return False
