"""The heart-beat's thread: renews leases in Redis and says in Redis and SQL that this worker is alive."""

import logging
import threading
from collections.abc import Callable

from worker.errors import ServiceUnavailable, TryLater
from worker.held import HeldJobs
from worker.queue import JobQueue

logger = logging.getLogger(__name__)


class Heart:
    """Beats every `beat_seconds` until stopped, drain included."""

    def __init__(
        self,
        job_queue: JobQueue,
        held: HeldJobs,
        beat_seconds: float,
        beat_worker: Callable[[], None],
        lose: Callable[[str], None],
    ) -> None:
        """`beat_worker` renews the worker's own entries; `lose` is told the id of each job whose lease is gone."""
        self._queue = job_queue
        self._held = held
        self._beat_seconds = beat_seconds
        self._beat_worker = beat_worker
        self._lose = lose
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        """Beat until stopped. A service that is down is logged and tried again at the next beat."""
        while not self._stopped.wait(self._beat_seconds):
            try:
                self._renew()
            except (ServiceUnavailable, TryLater) as error:
                logger.warning("cannot renew leases: %s", error)
            try:
                self._beat_worker()
            except (ServiceUnavailable, TryLater) as error:
                logger.warning("cannot beat: %s", error)

    def _renew(self) -> None:
        jobs = self._held.all()
        gone = self._queue.extend(job.claim for job in jobs)
        for job in jobs:
            # A job that was acknowledged while its lease was being renewed is not held any more, and not lost.
            if job.claim.execution_id in gone and self._held.get(job.claim.job_id) is job:
                logger.warning("job %s: its lease is gone", job.claim.job_id)
                self._lose(job.claim.job_id)
