"""Claiming: from Redis to SQL to the intake. Runs on the worker's main thread."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

from worker.errors import ServiceUnavailable, TryLater
from worker.functions.rq_functions import FunctionWorker
from worker.inputs import InputEnd
from worker.log_fields import about
from worker.metrics.job_tally import JobTally
from worker.queue.claim_replies import Claimed
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import TERMINAL_STATES, AttemptState, Claim, DeadRecord, JobState
from worker.running.appetite import Appetite
from worker.running.duty import SuspectDuty
from worker.running.failpoints import Failpoints, Point
from worker.running.held import HeldJob, HeldJobs
from worker.running.isolation import Fault, isolating
from worker.running.outcomes import INTERNAL_ERROR, return_value
from worker.sql.attempts import BegunAttempts
from worker.sql.store import JobStore
from worker.trace_context import named_trace
from worker.tracing.tracer import Tracer

ATTEMPT_STATES = {
    JobState.DONE: AttemptState.DONE,
    JobState.FAILED: AttemptState.FAILED,
    JobState.DEAD: AttemptState.FAILED,
    JobState.CANCELLED: AttemptState.CANCELLED,
}

logger = logging.getLogger(__name__)


class Claimer:
    """Fills the held jobs from the queues, first queue first. No call of it waits for a service to come back."""

    def __init__(
        self,
        job_queue: JobQueue,
        store: JobStore,
        held: HeldJobs,
        queues: Sequence[str],
        appetite: Appetite,
        duty: SuspectDuty,
        functions: FunctionWorker,
        take: Callable[[HeldJob], None],
        lose: Callable[[HeldJob], None],
        failpoints: Failpoints,
        tally: JobTally,
        tracer: Tracer,
    ) -> None:
        """`take` gets each job that is to run, `lose` each that is held under an earlier lease as well. `functions`
        runs the plain functions.
        """
        self._queue = job_queue
        self._store = store
        self._held = held
        self._queues = tuple(queues)
        self._appetite = appetite
        self._duty = duty
        self._functions = functions
        self._take = take
        self._lose = lose
        self._failpoints = failpoints
        self._tally = tally
        self._tracer = tracer
        self._reply_lost = False
        self._pending: Claimed | None = None  # claimed, but SQL does not have all of it yet

    def claim(self) -> int:
        """Claim as many jobs as there is room for; returns how many records came.

        Raises ServiceUnavailable or TryLater when a service is down. Nothing is lost then: the next call goes on where
        this one stopped, with the claims that SQL has not taken, or with those whose reply was lost.
        """
        if self._pending is None:
            if not self._may_claim():
                return 0
            self._pending = self._admit_functions(self._fetch())
            self._hold(self._pending.claims)
            if self._pending.claims:
                self._failpoints.reach(Point.AFTER_CLAIM)
        num_records = self._pending.num_records
        faulty = self._begin(self._pending.claims)
        self._pending = Claimed((), (*self._pending.dead, *faulty))
        self._bury(self._pending.dead)
        self._pending = None
        return num_records

    def hand_back(self) -> None:
        """Requeue what SQL has not taken, and what came with a lost reply. Raises as `claim`; the leases of what stays
        behind run out by themselves."""
        if self._pending is not None:
            claims, self._pending = self._pending.claims, None
            self._held.remove(claim.execution_id for claim in claims)
            self._queue.requeue(claims)
        if self._reply_lost:
            claimed = self._fetch()
            self._queue.requeue([*claimed.claims, *claimed.functions])
        self._duty.end()

    def waits_for_limits(self) -> bool:
        """Tell whether jobs of these queues are parked: they will be claimable by themselves. Raises as `claim`."""
        return self._queue.has_parked(self._queues)

    def sweep(self) -> None:
        """Let the jobs of workers that died or fell silent go on, suspects apart from the others. Raises as `claim`."""
        # First our own leases: after a pause of this process they may have run out too, and need not.
        self._queue.extend(job.claim for job in self._held.all())
        self._functions.renew_functions(self._queue, self._duty.suspects)
        self._duty.take_over()
        for job_id in self._queue.sweep(self._queues):
            logger.warning("job %s: its worker fell silent; it runs again, apart", job_id, extra={"job_id": job_id})
        self._duty.seek()

    def _may_claim(self) -> bool:
        """Tell whether there is something to claim, and room for it; beside a group of suspects nothing may run."""
        if self._reply_lost:
            return True
        return self._duty.may_claim() if self._duty.is_on else self._num_wanted() >= 1

    def _num_wanted(self) -> int:
        """Return how many jobs to claim now: what the engine can soon use, or threads for functions that are free,
        within what may be held."""
        return min(self._held.room, max(self._appetite.num_jobs(), self._functions.num_free_threads()))

    def _admit_functions(self, claimed: Claimed) -> Claimed:
        """Run what plain functions a claim brought. Returns the claim with what cannot be run among the dead."""
        refused = [self._functions.admit(claim) for claim in claimed.functions]
        return replace(claimed, dead=(*claimed.dead, *(record for record in refused if record is not None)))

    def _fetch(self) -> Claimed:
        try:
            if self._reply_lost:
                known = [job.claim.execution_id for job in self._held.all()]
                claimed = self._queue.recover([*known, *self._functions.execution_ids()])
            else:
                # A duty that ends claims nothing: the queues come next, within the same call.
                claimed = self._duty.claim()
                if not self._duty.is_on:
                    claimed = self._queue.claim(self._queues, self._num_wanted())
        except (ServiceUnavailable, TryLater):
            self._reply_lost = True
            raise
        self._reply_lost = False
        return claimed

    def _hold(self, claims: Sequence[Claim]) -> None:
        self._tally.note_claims(len(claims))
        now = time.monotonic()
        for earlier in self._held.add(HeldJob(claim, now - claim.age_seconds) for claim in claims):
            claim = earlier.claim
            logger.warning("job %s was claimed again; its earlier attempt here ends", claim.job_id, extra=about(claim))
            self._lose(earlier)

    def _begin(self, claims: Sequence[Claim]) -> tuple[DeadRecord, ...]:
        """Record attempts and take those that began. Returns what stands in for claims that SQL refuses."""
        parts, faults = isolating(self._begin_attempts, claims)
        begun = {job_id: attempt for part in parts for job_id, attempt in part.begun.items()}
        terminal = {job_id: state for part in parts for job_id, state in part.terminal.items()}
        self._acknowledge_ended([claim for claim in claims if claim.job_id in terminal], terminal)
        inputs = self._inputs_of([claim for claim in claims if claim.job_id in begun])
        for job_id in frozenset().union(*(part.stale for part in parts)):
            logger.info("job %s was claimed again before its attempt began", job_id, extra={"job_id": job_id})
        for claim in claims:
            job, attempt = self._held.find(claim.job_id), begun.get(claim.job_id)
            if attempt is None:
                self._held.remove([claim.execution_id])
            elif job is not None:
                job.attempt_count, job.retry_count = attempt.attempt_count, attempt.retry_count
                job.inputs = {job_id: inputs[job_id] for job_id in claim.job.inputs if job_id in inputs}
                self._take(job)
        return tuple(_dead_record(fault) for fault in faults)

    def _begin_attempts(self, claims: Sequence[Claim]) -> BegunAttempts:
        self._failpoints.reach(Point.BEFORE_BEGIN)
        return self._store.begin_attempts(claims, self._queue.worker_name)

    def _inputs_of(self, claims: Sequence[Claim]) -> Mapping[str, InputEnd]:
        """Return how the jobs have ended, or stand, whose outputs are in the prompts of these."""
        wanted = {job_id for claim in claims for job_id in claim.job.inputs}
        return self._store.input_ends(wanted) if wanted else {}

    def _acknowledge_ended(self, claims: Sequence[Claim], states: Mapping[str, JobState]) -> None:
        """Only acknowledge jobs that SQL has as ended: their worker died between its commit and its acknowledgement."""
        owed = [self._recalled(claim, states[claim.job_id]) for claim in claims]
        _, faults = isolating(self._queue.acknowledge, owed)
        for fault in faults:
            claim = fault.item.claim
            logger.error("job %s cannot be acknowledged", claim.job_id, exc_info=fault.error, extra=about(claim))

    def _recalled(self, claim: Claim, state: JobState) -> Acknowledgement:
        """Return the acknowledgement that the job's worker owed."""
        detail = self._store.job(claim.job_id)
        assert detail is not None, "SQL has said how the job ended"
        value = None
        if detail.result is not None and state is JobState.DONE:
            value = return_value(detail.result, detail.stats, claim.job, claim.job_id)
        error = f"{detail.error_code}: {detail.error_message}" if detail.error_code else None
        return Acknowledgement(claim, ATTEMPT_STATES[state], value, error)

    def _bury(self, records: Sequence[DeadRecord]) -> None:
        if not records:
            return
        records = [self._completed(record) for record in self._without_ended(records)]
        for record in records:
            code, reason, extra = record.error_code, record.error_message, _about_dead(record)
            logger.warning("record %s is dead: %s: %s", record.job_id, code, reason, extra=extra)
        _, faults = isolating(self._store.record_dead, records)
        for fault in faults:
            record, extra = fault.item, _about_dead(fault.item)
            logger.error("SQL refuses the dead record %s", record.job_id, exc_info=fault.error, extra=extra)
        _, faults = isolating(self._queue.dead_letter, records)
        for fault in faults:
            record, extra = fault.item, _about_dead(fault.item)
            logger.error("record %s cannot be dead-lettered in Redis", record.job_id, exc_info=fault.error, extra=extra)
        self._tally.note_dead(records)
        self._tracer.note_dead(records)

    def _without_ended(self, records: Sequence[DeadRecord]) -> list[DeadRecord]:
        """Leave out guilty jobs that had ended when their worker died once more: SQL has their results. Their leases
        run out, and they are only acknowledged by whoever claims them then."""
        states = self._store.states(record.job_id for record in records if record.diagnosis is not None)
        ended = {job_id for job_id, state in states.items() if state in TERMINAL_STATES - {JobState.DEAD}}
        if ended:
            self._duty.suspects.pardon(ended)
        return [record for record in records if record.job_id not in ended]

    def _completed(self, record: DeadRecord) -> DeadRecord:
        """Add to a diagnosis what only SQL knows."""
        if record.diagnosis is None:
            return record
        workers = [asdict(worker) for worker in self._store.worker_records(record.diagnosis.worker_names)]
        return replace(record, diagnosis=record.diagnosis.on(workers))


def _dead_record(fault: Fault[Claim]) -> DeadRecord:
    claim, error = fault.item, fault.error
    logger.error("SQL refuses an attempt at job %s", claim.job_id, exc_info=error, extra=about(claim))
    message = f"the worker met an unexpected {type(error).__name__}; its log has the details"
    return DeadRecord(
        claim.job_id,
        claim.queue,
        INTERNAL_ERROR,
        message,
        claim.payload_json,
        claim.enqueued_at,
        traceparent=named_trace(claim.job, claim.rq_traceparent),
    )


def _about_dead(record: DeadRecord) -> dict[str, object]:
    return {"job_id": record.job_id, "queue": record.queue}
