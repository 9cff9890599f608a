"""The persister's thread: commits outcomes to SQL, then acknowledges them in Redis, in this order only."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from worker.errors import ServiceUnavailable, TryLater
from worker.log_fields import about
from worker.metrics.job_tally import JobTally
from worker.queue.job_queue import Delay, JobQueue
from worker.records import AttemptState, Outcome
from worker.running.account import WorkerAccount
from worker.running.failpoints import Failpoints, Point
from worker.running.held import HeldJob, HeldJobs
from worker.running.isolation import isolating
from worker.running.outcomes import OutcomeBuilder, acknowledgement, broken_off
from worker.running.usage import since_claim_ms
from worker.sql.fleet import WorkerCounters
from worker.sql.store import JobStore
from worker.tracing.tracer import Tracer

FIRST_PAUSE_SECONDS = 0.1  # after a service did not answer
LONGEST_PAUSE_SECONDS = 5.0
ENDED_HERE = frozenset({AttemptState.DONE, AttemptState.FAILED, AttemptState.CANCELLED})

logger = logging.getLogger(__name__)


class Persister:
    """Holds outcomes until SQL and Redis have them. What waits here still counts as held: claims stop by themselves.

    An outage of one service does not hold up what the other can take.
    """

    def __init__(
        self,
        store: JobStore,
        job_queue: JobQueue,
        held: HeldJobs,
        outcomes: OutcomeBuilder,
        before_acknowledging: Callable[[Sequence[Outcome]], None],
        failpoints: Failpoints,
        tally: JobTally,
        account: WorkerAccount,
        tracer: Tracer,
    ) -> None:
        """`before_acknowledging` sees outcomes that SQL has and nobody else knows of yet; it must not raise."""
        self._store = store
        self._queue = job_queue
        self._held = held
        self._outcomes = outcomes
        self._before_acknowledging = before_acknowledging
        self._failpoints = failpoints
        self._tally = tally
        self._account = account
        self._tracer = tracer
        self._ends: queue.SimpleQueue[HeldJob | Outcome | None] = queue.SimpleQueue()
        self._uncommitted: list[Outcome] = []
        self._unacknowledged: list[Outcome] = []  # SQL has them
        self._to_requeue: list[Outcome] = []
        self._to_delay: list[Delay] = []
        self._give_up = threading.Event()
        self.counters = WorkerCounters()

    def put(self, end: HeldJob | Outcome) -> None:
        """Take a finished job or a ready outcome; returns at once. The first end of a job is the one that counts."""
        if self._held.end(end.claim.execution_id):
            self._ends.put(end)

    def stop(self) -> None:
        """Let `run` return once all that was put is persisted."""
        self._ends.put(None)

    def give_up(self) -> None:
        """Let `run` end after one more try."""
        self._give_up.set()
        self._ends.put(None)

    def run(self) -> None:
        """Persist until stopped.

        Raises ServiceUnavailable or TryLater when some could not be persisted before `give_up`: they stay held, and
        what is not acknowledged is run, or only acknowledged, by whoever claims it next.
        """
        stopping = False
        pause: float | None = None  # None is to wait for the next end
        while not stopping or pause is not None:
            stopping = self._take(pause) or stopping
            error = self._persist()
            if error is None:
                if pause is not None:
                    logger.warning("results can be persisted again")
                pause = None
            elif self._give_up.is_set():
                raise error
            else:
                if pause is None:
                    logger.warning("results are held: %s", error)
                pause = FIRST_PAUSE_SECONDS if pause is None else min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _take(self, timeout_seconds: float | None) -> bool:
        """Wait for an end, then take all there are. Returns whether to stop."""
        taken: list[HeldJob | Outcome | None] = []
        with suppress(queue.Empty):
            taken.append(self._ends.get(timeout=timeout_seconds))
            while True:
                taken.append(self._ends.get_nowait())
        self._uncommitted += [self._outcome(end) for end in taken if end is not None]
        return None in taken

    def _outcome(self, end: HeldJob | Outcome) -> Outcome:
        if isinstance(end, Outcome):
            return end
        for index, request in enumerate(end.outputs):
            self._tally.note_request(request, has_new_prompt=index == 0)
        try:
            return self._outcomes.finished(end)
        except Exception as error:  # a detokenizer's bug, say: this job's end, not the worker's
            logger.exception("job %s has no outcome", end.claim.job_id, extra=about(end.claim))
            return self._outcomes.broken(end, error)

    def _persist(self) -> ServiceUnavailable | TryLater | None:
        """Bring everything as far as it goes. Returns the error of a service that does not answer."""
        failure = None
        for step in (self._commit, self._acknowledge, self._requeue, self._delay):
            try:
                step()
            except (ServiceUnavailable, TryLater) as error:
                failure = failure or error
        return failure

    def _commit(self) -> None:
        """Commit outcomes, and failures in the place of those that SQL refuses."""
        if not self._uncommitted:
            return
        now = time.monotonic()
        outcomes = tuple(self._committed_at(outcome, now) for outcome in self._uncommitted)
        self._failpoints.reach(Point.BEFORE_COMMIT)
        account = self._account.entry()  # with all that these outcomes were charged
        fenced, faults = isolating(lambda some: self._store.finish_attempts(some, account), outcomes)
        for fault in faults:
            claim = fault.item.claim
            logger.error("the result of job %s is refused", claim.job_id, exc_info=fault.error, extra=about(claim))
        refused = [fault for fault in faults if fault.item.state in ENDED_HERE]
        instead = {fault.item.claim.execution_id: broken_off(fault.item, fault.error) for fault in refused}
        if instead:
            fenced.append(self._store.finish_attempts(list(instead.values())))
        self._failpoints.reach(Point.AFTER_COMMIT)
        self._uncommitted.clear()
        settled = [instead.get(outcome.claim.execution_id, outcome) for outcome in outcomes]
        self._tracer.note_commit(settled)
        self._sort_out(settled, frozenset().union(*fenced))

    def _committed_at(self, outcome: Outcome, now: float) -> Outcome:
        job = self._held.get(outcome.claim.execution_id)
        if job is None:  # handed back already, while this was waiting for SQL
            return outcome
        return replace(outcome, usage=replace(outcome.usage, committed_ms=since_claim_ms(job, now)))

    def _sort_out(self, outcomes: Sequence[Outcome], fenced: frozenset[str]) -> None:
        """Note what the queue must hear of outcomes that SQL has, and let the others go."""
        forgotten = []
        for outcome in outcomes:
            if outcome.state is AttemptState.REQUEUED:
                self._give_back(outcome)  # fenced or not: the queue knows itself whether it is ours to give
            elif outcome.state is AttemptState.LOST:
                forgotten.append(outcome)
            elif outcome.claim.job_id in fenced:
                claim = outcome.claim
                logger.warning(
                    "job %s was taken over by another worker; its result is dropped", claim.job_id, extra=about(claim)
                )
                forgotten.append(outcome)
                self._tally.note_fenced()
            elif outcome.retry is not None:
                self._give_back(outcome)
            else:
                self._unacknowledged.append(outcome)
        self._release(forgotten)

    def _give_back(self, outcome: Outcome) -> None:
        self._tally.note_given_back(outcome)
        if outcome.retry is None:
            self._to_requeue.append(outcome)
            return
        reason = f"{outcome.error_code}: {outcome.error_message}"
        claim, due_at = outcome.claim, outcome.retry.due_at
        logger.warning("job %s is tried again at %s: %s", claim.job_id, due_at, reason, extra=about(claim))
        self._to_delay.append(Delay(outcome.claim, outcome.retry))

    def _acknowledge(self) -> None:
        if not self._unacknowledged:
            return
        outcomes = tuple(self._unacknowledged)
        self._before_acknowledging(outcomes)
        _, faults = isolating(self._queue.acknowledge, [acknowledgement(outcome) for outcome in outcomes])
        for fault in faults:
            claim = fault.item.claim
            logger.error("job %s cannot be acknowledged", claim.job_id, exc_info=fault.error, extra=about(claim))
        cancelled = [outcome.claim.job_id for outcome in outcomes if outcome.state is AttemptState.CANCELLED]
        self._queue.forget_cancelling(cancelled)
        self._failpoints.reach(Point.AFTER_ACKNOWLEDGE)
        self._unacknowledged.clear()
        self._count(outcomes)
        self._tracer.note_acknowledged(outcomes)
        self._release(outcomes)

    def _requeue(self) -> None:
        if self._to_requeue:
            outcomes = tuple(self._to_requeue)
            self._queue.requeue(outcome.claim for outcome in outcomes)
            self._to_requeue.clear()
            self._release(outcomes)

    def _delay(self) -> None:
        if not self._to_delay:
            return
        delays = tuple(self._to_delay)
        parts, faults = isolating(self._queue.delay, delays)
        for fault in faults:  # it goes on when its lease runs out
            claim = fault.item.claim
            logger.error("job %s cannot be delayed", claim.job_id, exc_info=fault.error, extra=about(claim))
        cancelled = frozenset[str]().union(*(part.cancelled for part in parts))
        if cancelled:
            self._store.cancel_queued(cancelled)
        self._to_delay.clear()
        self._held.remove(delay.claim.execution_id for delay in delays)

    def _release(self, outcomes: Sequence[Outcome]) -> None:
        if outcomes:
            self._held.remove(outcome.claim.execution_id for outcome in outcomes)

    def _count(self, ended: Sequence[Outcome]) -> None:
        self._tally.note_ends(ended)
        done = [outcome for outcome in ended if outcome.state is AttemptState.DONE]
        failed = [outcome for outcome in ended if outcome.state is AttemptState.FAILED]
        self.counters = WorkerCounters(
            jobs_done=self.counters.jobs_done + len(done),
            jobs_failed=self.counters.jobs_failed + len(failed),
            prompt_tokens=self.counters.prompt_tokens + sum(o.prompt_tokens for o in done),
            completion_tokens=self.counters.completion_tokens + sum(o.completion_tokens for o in done),
            prefix_hit_tokens=self.counters.prefix_hit_tokens + sum(o.stats.prefix_hit_tokens for o in done if o.stats),
        )
