"""The persister's thread: commits outcomes to SQL, then acknowledges them in Redis, in this order only."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from worker.errors import ServiceUnavailable, TryLater
from worker.fleet import WorkerCounters
from worker.held import HeldJob, HeldJobs
from worker.outcomes import OutcomeBuilder, acknowledgement
from worker.queue import JobQueue
from worker.records import AttemptState, Outcome
from worker.store import JobStore

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


def retrying(action: Callable[[], T], what: str, give_up: threading.Event) -> T:
    """Call `action` until its service answers; pauses grow. Raises its last error once `give_up` is set."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("%s: %s; trying again in %.1f s", what, error, pause)
            if give_up.wait(pause):
                raise
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class Persister:
    """Holds outcomes until SQL and Redis have them. What waits here still counts as held: claims stop by themselves."""

    def __init__(
        self, store: JobStore, job_queue: JobQueue, held: HeldJobs, outcomes: OutcomeBuilder, give_up: threading.Event
    ) -> None:
        self._store = store
        self._queue = job_queue
        self._held = held
        self._outcomes = outcomes
        self._give_up = give_up
        self._ends: queue.SimpleQueue[HeldJob | Outcome | None] = queue.SimpleQueue()
        self.counters = WorkerCounters()

    def put(self, end: HeldJob | Outcome) -> None:
        """Take a finished job or a ready outcome; returns at once."""
        self._held.mark_ended(end.claim.job_id)
        self._ends.put(end)

    def stop(self) -> None:
        """Let `run` return once all that was put is persisted."""
        self._ends.put(None)

    def run(self) -> None:
        """Persist until stopped. Raises ServiceUnavailable when told to give up while a service is down: what is not
        acknowledged then keeps its lease and is run, or acknowledged, by whoever claims it next."""
        while True:
            batch, stopping = self._take()
            if batch:
                self._persist(batch)
            if stopping:
                return

    def _take(self) -> tuple[list[Outcome], bool]:
        """Wait for an end, then take all there are."""
        taken = [self._ends.get()]
        while True:
            try:
                taken.append(self._ends.get_nowait())
            except queue.Empty:
                break
        outcomes = [self._outcomes.finished(end) if isinstance(end, HeldJob) else end for end in taken if end]
        return outcomes, None in taken

    def _persist(self, outcomes: Sequence[Outcome]) -> None:
        fenced = retrying(lambda: self._store.finish_attempts(outcomes), "cannot commit results", self._give_up)
        for job_id in fenced:
            logger.warning("job %s was taken over by another worker; its result here is dropped", job_id)
        committed = [outcome for outcome in outcomes if outcome.claim.job_id not in fenced]
        self._tell_queue(committed)
        self._count(committed)
        self._held.remove(outcome.claim.job_id for outcome in outcomes)

    def _tell_queue(self, outcomes: Sequence[Outcome]) -> None:
        back = [outcome.claim for outcome in outcomes if outcome.state is AttemptState.REQUEUED]
        ended = [outcome for outcome in outcomes if outcome.state is not AttemptState.REQUEUED]
        cancelled = [outcome.claim.job_id for outcome in ended if outcome.state is AttemptState.CANCELLED]
        ends = [acknowledgement(outcome) for outcome in ended]
        retrying(lambda: self._queue.acknowledge(ends), "cannot acknowledge", self._give_up)
        retrying(lambda: self._queue.forget_cancelling(cancelled), "cannot acknowledge", self._give_up)
        retrying(lambda: self._queue.requeue(back), "cannot requeue", self._give_up)

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        done = [outcome for outcome in outcomes if outcome.state is AttemptState.DONE]
        failed = [outcome for outcome in outcomes if outcome.state is AttemptState.FAILED]
        self.counters = WorkerCounters(
            jobs_done=self.counters.jobs_done + len(done),
            jobs_failed=self.counters.jobs_failed + len(failed),
            prompt_tokens=self.counters.prompt_tokens + sum(o.prompt_tokens for o in done),
            completion_tokens=self.counters.completion_tokens + sum(o.completion_tokens for o in done),
            prefix_hit_tokens=self.counters.prefix_hit_tokens + sum(o.stats.prefix_hit_tokens for o in done if o.stats),
        )
