"""What a worker repeats while it lives: renewing its leases in Redis, saying in Redis and SQL that it is there."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from rq.defaults import RQ_KEY_PREFIX

from worker.errors import ServiceUnavailable, TryLater
from worker.log_fields import about
from worker.queue.connection import redis_errors
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import Absolution, Suspects
from worker.running.held import HeldJob, HeldJobs

RETRY_SECONDS = 1.0  # after a beat that failed: a lease may have only one more to live

logger = logging.getLogger(__name__)


class Beat:
    """Does one thing every `seconds` until stopped. A service that is down is logged once per outage."""

    def __init__(self, action: Callable[[], None], seconds: float, what: str) -> None:
        """`action` may raise ServiceUnavailable or TryLater; `what` names it in the log."""
        self._action = action
        self._seconds = seconds
        self._what = what
        self._stopped = threading.Event()
        self._is_down = False
        self.num_outages = 0
        self._succeeded_at = time.monotonic()  # or was made then

    def is_well(self, patience_seconds: float) -> bool:
        """Tell whether the last time went well, and is not long ago. From any thread."""
        return not self._is_down and time.monotonic() - self._succeeded_at <= patience_seconds

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        while not self._stopped.wait(min(self._seconds, RETRY_SECONDS) if self._is_down else self._seconds):
            try:
                self._action()
            except (ServiceUnavailable, TryLater) as error:
                if not self._is_down:
                    logger.warning("cannot %s: %s", self._what, error)
                    self.num_outages += 1
                self._is_down = True
            else:
                if self._is_down:
                    logger.warning("can %s again", self._what)
                self._is_down = False
                self._succeeded_at = time.monotonic()


class Leases:
    """The leases of the held jobs."""

    def __init__(
        self,
        job_queue: JobQueue,
        held: HeldJobs,
        lose: Callable[[HeldJob], None],
        cancel: Callable[[str], None],
        suspects: Suspects,
    ) -> None:
        """`lose` ends a job that somebody else runs or will run, `cancel` (by job id) one that RQ's tools ended."""
        self._queue = job_queue
        self._held = held
        self._lose = lose
        self._cancel = cancel
        self._suspects = suspects

    def renew(self) -> None:
        """Renew all leases, and act on those that are gone. Raises ServiceUnavailable or TryLater."""
        jobs = [job for job in self._held.all() if not job.lease_gone]
        gone = self._queue.extend(job.claim for job in jobs)
        # A job that was acknowledged while its lease was being renewed has its outcome, and is not lost.
        lapsed = [job for job in jobs if job.claim.execution_id in gone and self._held.is_unfinished(job)]
        records = self._read_records(lapsed)
        self._absolve(lapsed)
        for job, (status, execution_id) in zip(lapsed, records, strict=True):
            job.lease_gone = True
            self._act(job, status, execution_id)
        self._suspects.renew_duty()

    def _absolve(self, lapsed: Sequence[HeldJob]) -> None:
        """Clear jobs of what the silence of this worker made others suspect: it lives."""
        for job, absolution in zip(lapsed, self._suspects.absolve(job.claim for job in lapsed), strict=True):
            if absolution is Absolution.TOO_LATE:
                logger.error(
                    "job %s was dead-lettered because this worker was cut off for long; queue it again with "
                    "`pagemill dead requeue`",
                    job.claim.job_id,
                    extra=about(job.claim),
                )

    def _act(self, job: HeldJob, status: str | None, execution_id: str | None) -> None:
        claim, extra = job.claim, about(job.claim)
        if status in ("canceled", "stopped"):
            logger.warning("job %s was cancelled with RQ's tools", claim.job_id, extra=extra)
            self._cancel(claim.job_id)
        elif status is None or (status == "started" and execution_id == claim.execution_id):
            # Deleted, or wiped with the whole server: nobody else will run it, so its result is worth having in SQL.
            logger.warning("job %s: the queue has lost it; its result goes to SQL only", claim.job_id, extra=extra)
        else:
            logger.warning("job %s: its lease ran out, and it is run elsewhere", claim.job_id, extra=extra)
            self._lose(job)

    def _read_records(self, jobs: Sequence[HeldJob]) -> list[tuple[str | None, str | None]]:
        """Return RQ's status of each job and the execution that holds it now."""
        if not jobs:
            return []
        with redis_errors(), self._queue.connection.pipeline(transaction=False) as pipeline:
            for job in jobs:
                pipeline.hmget(f"{RQ_KEY_PREFIX}:job:{job.claim.job_id}", "status", "pagemill_execution")
            replies = pipeline.execute()
        return [(_text(status), _text(execution_id)) for status, execution_id in replies]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
