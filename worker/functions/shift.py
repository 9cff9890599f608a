"""The work of a worker without an engine: it claims plain functions, and nothing else."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rq import Queue
from rq.worker import DequeueStrategy

from worker.errors import ServiceUnavailable, TryLater
from worker.functions.pool import FunctionPool
from worker.functions.rq_functions import FunctionWorker
from worker.functions.rq_schedule import InProcessScheduler, Schedule
from worker.queue.claim_replies import Claimed, ReadRecord
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import Suspects
from worker.records import Claim
from worker.running.beats import Beat
from worker.running.drain import Delays, Drain
from worker.running.held import HeldJobs
from worker.running.threads import Failure, ServiceThread
from worker.settings_model import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShiftLimits:
    """When a worker has done enough; None is never."""

    max_jobs: int | None = None
    max_idle_seconds: float | None = None


class FunctionClaimer:
    """Claims functions for a worker's pool, and tells the worker to stop where a limit is reached.

    A queue of prompt jobs is handed back and left alone: its jobs wait for a worker that has an engine.
    """

    def __init__(
        self, worker: FunctionWorker, job_queue: JobQueue, suspects: Suspects, held: HeldJobs, limits: ShiftLimits
    ) -> None:
        self._worker = worker
        self._queue = job_queue
        self._suspects = suspects
        self._held = held
        self._limits = limits
        self._left_alone: set[str] = set()  # queues
        self._reply_lost = False
        self._idle_since = time.monotonic()
        self.num_admitted = 0

    def claim(self) -> int:
        """Claim what there is room for; returns how many records came. Raises ServiceUnavailable or TryLater; the jobs
        of a claim whose reply was lost come with the next one."""
        if self._suspects.duty is not None and len(self._held):
            return 0  # beside suspects nothing may run
        claimed = self._fetch()
        self._leave_alone(claimed.claims)
        dead = [*claimed.dead]
        for claim in claimed.functions:
            refused = self._worker.admit(claim)
            if refused is None:
                self.num_admitted += 1
            else:
                dead.append(refused)
        for record in dead:
            logger.warning("record %s is dead: %s: %s", record.job_id, record.error_code, record.error_message)
        if dead:
            self._queue.dead_letter(dead)
        num_records = claimed.num_records - len(claimed.claims)
        self._watch_limits(num_records)
        return num_records

    def sweep(self) -> None:
        """Let jobs whose leases ran out go on, apart from others, after our own leases were renewed."""
        self._worker.renew_functions(self._queue, self._suspects)
        for job_id in self._queue.sweep(queue.name for queue in self._worker.queues):
            logger.warning("job %s: its worker fell silent; it runs again, apart", job_id)
        if self._suspects.duty is None:
            self._suspects.seek_duty([queue.name for queue in self._served()])

    def waits_for_limits(self) -> bool:
        """Plain functions have no tenants."""
        return False

    def hand_back(self) -> None:
        """Requeue what still runs, and what came with a lost reply."""
        self._queue.requeue(self._worker.hand_back_functions())
        if self._reply_lost:
            claimed = self._fetch()
            self._queue.requeue([*claimed.functions, *claimed.claims])
        self._suspects.end_duty()

    def _fetch(self) -> Claimed:
        try:
            claimed = self._recover() if self._reply_lost else self._claim_in_turn()
        except (ServiceUnavailable, TryLater):
            self._reply_lost = True
            raise
        self._reply_lost = False
        return claimed

    def _recover(self) -> Claimed:
        return self._queue.recover(self._worker.execution_ids())

    def _served(self) -> list[Queue]:
        return [queue for queue in self._worker._ordered_queues if queue.name not in self._left_alone]

    def _claim_in_turn(self) -> Claimed:
        claimed = self._suspects.claim()
        if self._suspects.duty is not None:
            return claimed
        queues = self._served()
        room = self._held.room
        if self._limits.max_jobs is not None:
            room = min(room, self._limits.max_jobs - self.num_admitted)
        if self._worker._dequeue_strategy != DequeueStrategy.DEFAULT:
            room = min(room, 1)  # the turn changes with each job
        claimed = self._queue.claim([queue.name for queue in queues], room)
        self._change_turn(queues, (claim.queue for claim in claimed.functions))
        return claimed

    def _change_turn(self, queues: Iterable[Queue], names: Iterable[str]) -> None:
        by_name = {queue.name: queue for queue in queues}
        for name in names:
            self._worker.reorder_queues(by_name[name])

    def _leave_alone(self, prompts: Iterable[Claim]) -> None:
        prompts = list(prompts)
        for name in {claim.queue for claim in prompts} - self._left_alone:
            logger.error("queue %s has prompt jobs, and this worker no engine: it leaves the queue alone", name)
            self._left_alone.add(name)
        if prompts:
            self._queue.requeue(prompts)
            self._suspects.end_duty()

    def _watch_limits(self, num_records: int) -> None:
        now = time.monotonic()
        if num_records or len(self._held):
            self._idle_since = now
        idle_seconds, max_idle_seconds = now - self._idle_since, self._limits.max_idle_seconds
        if max_idle_seconds is not None and idle_seconds >= max_idle_seconds:
            logger.info("idle for %g s", max_idle_seconds)
            self._worker.stopping.set()
        if self._limits.max_jobs is not None and self.num_admitted >= self._limits.max_jobs:
            self._worker.stopping.set()


class NoDelays:
    """What stands in for the delayed jobs where somebody else has the schedule."""

    def enqueue_due(self) -> None:
        """Do nothing."""

    def in_reach(self) -> bool:
        """Nothing is awaited."""
        return False


class FunctionShift:
    """What a worker without an engine needs from its first claim to its last."""

    def __init__(self, worker: FunctionWorker, settings: Settings, read: ReadRecord, limits: ShiftLimits) -> None:
        self._worker = worker
        # RQ's other strategies change the order of the queues with each job: there is no first one to share from.
        in_order = worker._dequeue_strategy in (None, DequeueStrategy.DEFAULT)
        self._queue = JobQueue(
            *(worker.connection, worker.name, settings.lease_seconds),
            lower_queue_share=settings.lower_queue_share if in_order else 0.0,
            read=read,
        )
        self._beat_seconds = settings.beat_seconds
        self._beats: list[Beat] = []
        held, failure = HeldJobs(settings.function_threads), Failure()
        self._pool = FunctionPool(settings.function_threads, held, worker.serve, failure)
        self._suspects = Suspects(worker.connection, worker.name, settings.lease_seconds, read=read)
        self.claimer = FunctionClaimer(worker, self._queue, self._suspects, held, limits)
        delayed: Delays = NoDelays()
        if isinstance(worker.scheduler, InProcessScheduler):
            delayed = Schedule(worker.scheduler, self._queue)
        self.drain = Drain(self.claimer, delayed, held, failure, settings.sweep_seconds)

    def start(self, beat: Callable[[], None]) -> None:
        """Start the threads; `beat` renews the worker's own entry."""
        self._worker.functions = self._pool
        actions = {"renew leases": self._renew, "beat": beat}
        for what, action in actions.items():
            self._beats.append(Beat(action, self._beat_seconds, what))
            ServiceThread(what, self._beats[-1].run, self.drain.failure).start()

    def _renew(self) -> None:
        self._worker.renew_functions(self._queue, self._suspects)
        self._suspects.renew_duty()

    def end(self) -> None:
        """Give back what still runs, and end the threads."""
        try:
            self.claimer.hand_back()
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("some jobs stay leased for %g s: %s", self._queue.lease_seconds, error)
        for beat in self._beats:
            beat.stop()
        self._worker.functions = None
