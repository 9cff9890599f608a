"""Claiming: from Redis to SQL to the intake. Runs on the worker's main thread."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from worker.errors import ServiceUnavailable, TryLater
from worker.held import HeldJob, HeldJobs
from worker.persister import retrying
from worker.queue import Acknowledgement, Claimed, JobQueue
from worker.records import AttemptState, Claim, JobState
from worker.store import JobStore

ATTEMPT_STATES = {
    JobState.DONE: AttemptState.DONE,
    JobState.FAILED: AttemptState.FAILED,
    JobState.DEAD: AttemptState.FAILED,
    JobState.CANCELLED: AttemptState.CANCELLED,
}

logger = logging.getLogger(__name__)


class Claimer:
    """Fills the held jobs from the queues, first queue first. `take` gets each job that is to run."""

    def __init__(
        self,
        job_queue: JobQueue,
        store: JobStore,
        held: HeldJobs,
        queues: Sequence[str],
        take: Callable[[HeldJob], None],
        stopping: threading.Event,
    ) -> None:
        self._queue = job_queue
        self._store = store
        self._held = held
        self._queues = tuple(queues)
        self._take = take
        self._stopping = stopping
        self._reply_lost = False

    def claim(self) -> int:
        """Claim as many jobs as there is room for; returns how many records came.

        Waits, leases beating, while SQL is down. Raises ServiceUnavailable or TryLater when Redis is; the jobs of a
        claim whose reply was lost are fetched by the next call.
        """
        if self._held.room < 1:
            return 0
        try:
            if self._reply_lost:
                known = [job.claim.execution_id for job in self._held.all()]
                claimed = self._queue.recover(known)
            else:
                claimed = self._queue.claim(self._queues, self._held.room)
        except (ServiceUnavailable, TryLater):
            self._reply_lost = True
            raise
        self._reply_lost = False
        self._begin(claimed.claims)
        self._bury(claimed)
        return len(claimed.claims) + len(claimed.dead)

    def sweep(self) -> None:
        """Put jobs whose leases ran out back at the heads of their queues."""
        for job_id in self._queue.sweep(self._queues):
            logger.warning("job %s: its worker fell silent; queued again", job_id)

    def _bury(self, claimed: Claimed) -> None:
        if claimed.dead:
            for record in claimed.dead:
                logger.warning(
                    "record %s is dead-lettered: %s: %s", record.job_id, record.error_code, record.error_message
                )
            retrying(lambda: self._store.record_dead(claimed.dead), "cannot record dead jobs", self._stopping)
            self._queue.dead_letter(claimed.dead)

    def _begin(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        now = time.monotonic()
        jobs = {claim.job_id: HeldJob(claim, now) for claim in claims}
        self._held.add(jobs.values())  # from here on their leases are renewed
        try:
            begun = retrying(
                lambda: self._store.begin_attempts(claims, self._queue.worker_name),
                "cannot record attempts",
                self._stopping,
            )
            self._acknowledge_ended([c for c in claims if c.job_id in begun.terminal], begun.terminal)
        except (ServiceUnavailable, TryLater):
            self._held.remove(jobs)
            self._queue.requeue(claims)
            raise
        done_with = begun.stale | begun.terminal.keys()
        self._held.remove(done_with)
        for job_id, job in jobs.items():
            if job_id not in done_with:
                self._take(job)

    def _acknowledge_ended(self, claims: Sequence[Claim], states: Mapping[str, JobState]) -> None:
        """Only acknowledge jobs that SQL has as ended: their worker died between its commit and its acknowledgement."""
        if not claims:
            return
        results = self._store.results([claim.job_id for claim in claims])
        ends = []
        for claim in claims:
            state, result = states[claim.job_id], results.get(claim.job_id)
            value = None
            if result is not None and state is JobState.DONE:
                value = {
                    "text": result.text,
                    "finish_reason": result.finish_reason,
                    "prompt_tokens": result.prompt_tokens,
                    "completion_tokens": result.completion_tokens,
                }
            ends.append(Acknowledgement(claim, ATTEMPT_STATES[state], value, f"ended before as {state.value}"))
        self._queue.acknowledge(ends)
