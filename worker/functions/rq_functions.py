"""How the RQ worker runs plain functions: many at once, in threads, each ended through RQ's own code.

RQ forks a process per job, which has a copy of the worker. Here it is a thread, which has a copy too: with a fenced
connection, time-outs that reach a thread, and nobody else's job in it.
"""

import copy
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self

import redis
from redis.client import Pipeline
from rq import Queue, Worker
from rq.defaults import RQ_KEY_PREFIX
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.timeouts import JobTimeoutException
from rq.utils import now

from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.functions.fence import FencedRedis
from worker.functions.guard import Abandoned, Guard, ThreadDeathPenalty
from worker.functions.pool import FunctionPool, RunningFunction
from worker.queue.claim_replies import dead_record
from worker.queue.connection import redis_errors
from worker.queue.job_queue import JobQueue
from worker.queue.queue_records import RecordError
from worker.queue.suspects import Suspects
from worker.records import DeadRecord, FunctionClaim
from worker.running.threads import Flag

OUTAGE_POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class LeasedExecution(Execution):
    """RQ's execution of a job that was claimed under a lease; the lease goes with it."""

    def __init__(self, claim: FunctionClaim, job: Job, connection: redis.Redis, worker_name: str) -> None:
        super().__init__(claim.execution_id, claim.job_id, connection, worker_name)
        self.created_at = self.last_heartbeat = claim.claimed_at
        self.claim = claim
        self._job = job

    def delete(self, job: Job, pipeline: Pipeline) -> None:
        """Delete the execution and its lease, in the transaction that ends the job or queues it again."""
        super().delete(job, pipeline)
        pipeline.zrem(f"{RQ_KEY_PREFIX}:wip:{self.claim.queue}", self.composite_key)
        pipeline.zrem(f"pagemill:leases:{self.claim.queue}", self.composite_key)
        pipeline.hdel(job.key, "pagemill_execution", "pagemill_queue")


class FunctionWorker(Worker):
    """An `rq.Worker` whose jobs run in a pool of threads."""

    death_penalty_class = ThreadDeathPenalty

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what `rq.Worker` takes."""
        super().__init__(*args, **options)
        self.stopping = Flag()  # set by the first request to stop: claim nothing more
        self.handing_back = Flag()  # set by the second: finish nothing more either
        self.functions: FunctionPool | None = None  # once the worker runs some

    def admit(self, claim: FunctionClaim) -> DeadRecord | None:
        """Run a claimed function; returns at once. Returns what stands in for a record that RQ cannot read."""
        job = self.job_class(claim.job_id, connection=self.connection, serializer=self.serializer)
        try:
            job.restore(dict(claim.fields))
        except Exception as error:
            problem = RecordError("corrupt_record", f"RQ cannot read it ({type(error).__name__})")
            return dead_record(claim.job_id, claim.queue, problem, claim.fields)
        job._status = JobStatus.STARTED
        job.worker_name = self.name
        job.started_at = job.last_heartbeat = claim.claimed_at
        execution = LeasedExecution(claim, job, self.connection, self.name)
        self.executions[execution.id] = execution
        queue = self.queue_class(
            claim.queue,
            connection=self.connection,
            job_class=self.job_class,
            serializer=self.serializer,
            death_penalty_class=self.death_penalty_class,
        )
        self.execute_job(job, queue)
        return None

    def execution_ids(self) -> list[str]:
        """Return the ids of the executions whose functions the worker has."""
        return [function.execution.id for function in self._all_functions()]

    def num_free_threads(self) -> int:
        """Return how many functions could start now."""
        return self.functions.num_free if self.functions is not None else 0

    def hand_back_functions(self) -> list[FunctionClaim]:
        """Begin no more functions, and take those there are from their threads. Returns the claims to requeue."""
        if self.functions is not None:
            self.functions.stop()
        return self.take_functions()

    def take_functions(self) -> list[FunctionClaim]:
        """Take all functions from their threads. Returns the claims to requeue."""
        # The youngest first: they may not have begun, and are not to begin in the place of others.
        taken = [function for function in reversed(self._all_functions()) if function.guard.abandon()]
        for function in taken:
            self._forget(function)
        return [function.claim for function in taken if function.claim is not None]

    def renew_functions(self, job_queue: JobQueue, suspects: Suspects) -> None:
        """Renew the leases of the functions; one whose lease is gone is taken from its thread: it runs elsewhere, or
        nowhere if it was deleted. Raises ServiceUnavailable or TryLater."""
        functions = {function.execution.id: function for function in self._all_functions()}
        claims = [function.claim for function in functions.values() if function.claim is not None]
        gone = job_queue.extend_functions(claims)
        suspects.absolve(claim for claim in claims if claim.execution_id in gone)
        for execution_id in gone:
            if functions[execution_id].guard.abandon():
                logger.warning("job %s: its lease is gone; what it returns is dropped", functions[execution_id].job.id)
                self._forget(functions[execution_id])

    # What RQ calls, and what is called through RQ's names.

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Admit a job to the pool. Without one, as for a worker that was never told to work, run it here."""
        execution = next((e for e in [*self.executions.values()] if e._job is job), None) or self.prepare_execution(job)
        if self.functions is None:
            self.perform_job(job, queue, execution)
        else:
            self.functions.put(self._running(job, queue, execution))

    def perform_job(self, job: Job, queue: Queue, execution: Execution) -> bool:
        """Run a job to its end, in whatever thread. Returns whether its function returned."""
        function = self.functions.find(execution.id) if self.functions is not None else None
        function = function or self._running(job, queue, execution)
        return self._horse_of(function)._run(function)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note the time. No heartbeat: it would bring a job back that was deleted meanwhile."""
        job.ended_at = now()

    def handle_job_success(self, job: Job, queue: Queue, started_job_registry: Any, execution: Execution) -> None:
        """End a job through RQ. An outage is waited out, for its result is in hand; a commit whose reply was lost is
        not repeated: it took the fence away."""
        repeats = job.repeats_left, job.repeat_intervals
        while True:
            try:
                with redis_errors() if self.is_horse else nullcontext():
                    super().handle_job_success(job, queue, started_job_registry, execution)
            except (ServiceUnavailable, TryLater) as error:
                if not self._wait_out(error):
                    raise
                job.repeats_left, job.repeat_intervals = repeats
            else:
                return

    def request_stop_execution(self, execution_id: str) -> None:
        """End a function as stopped, whether or not its thread can be interrupted."""
        function = self.functions.find(execution_id) if self.functions is not None else None
        if function is None or not function.guard.abandon():
            logger.warning("execution %s does not run here, or has just ended; it is not stopped", execution_id)
            return

        def stop(horse: Self, job: Job) -> None:
            horse._stopped_job_id = job.id
            horse._handle_stopped_job(job, function.queue, function.execution)

        self._end_from_outside(function, stop)

    def stop_function(self, job_id: str) -> bool:
        """End a job's function as stopped. Returns False where this worker runs none."""
        function = self.functions.find_job(job_id) if self.functions is not None else None
        if function is None:
            return False
        self.request_stop_execution(function.execution.id)
        return True

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """End all functions as if their processes had been killed: they fail, or are retried."""
        for function in self._all_functions():
            if function.guard.abandon():
                self._fail(function, "Work-horse terminated unexpectedly: it was killed by a command")

    def _running(self, job: Job, queue: Queue, execution: Execution) -> RunningFunction:
        claim = execution.claim if isinstance(execution, LeasedExecution) else None
        guard = Guard(lambda error: self._time_out(execution.id, error))
        return RunningFunction(job, queue, execution, guard, claim)

    def _horse_of(self, function: RunningFunction) -> Self:
        """Return the worker as one job's thread sees it."""
        horse = copy.copy(self)
        horse._is_horse = True
        horse._stopped_job_id = None
        horse.connection = FencedRedis(self.connection, function.execution.key, self._wait_out)
        if not function.guard.is_abandoned:  # else this thread is not the function's own
            horse.death_penalty_class = function.guard.limit  # type: ignore[assignment]  # called as the class is
        return horse

    def _wait_out(self, error: PagemillError) -> bool:
        """Let some of an outage pass. Returns False when the worker is to hand back."""
        if self.handing_back.is_set():
            return False
        logger.warning("the end of a function's job is held: %s", error)
        time.sleep(OUTAGE_POLL_SECONDS)
        return True

    def _run(self, function: RunningFunction) -> bool:
        job, queue, execution = function.job, function.queue, function.execution
        try:
            if function.claim is None:
                self.prepare_job_execution(job, remove_from_intermediate_queue=len(self.queues) == 1)
            timeout = job.timeout or self.queue_class.DEFAULT_TIMEOUT
            with self.death_penalty_class(timeout, JobTimeoutException, job_id=job.id):
                return_value = job.perform()
            self._finalize_success(job, queue, execution, return_value)
        except Abandoned:
            raise
        except BaseException:
            function.guard.settle()
            self._finalize_failure(job, queue, execution, sys.exc_info())
            return False
        return True

    def serve(self, function: RunningFunction) -> None:
        """Perform a job on a thread of the pool. Whatever happens, the thread goes on."""
        try:
            self.perform_job(function.job, function.queue, function.execution)
        except Abandoned:
            logger.info("job %s: it is not this thread's any more", function.job.id)
        except BaseException as error:
            if function.guard.abandon():
                self._fail(function, f"Work-horse terminated unexpectedly: {error!r}")
            else:
                logger.exception("job %s cannot be ended; it runs again when its lease has run out", function.job.id)
        finally:
            self.executions.pop(function.execution.id, None)

    def _time_out(self, execution_id: str, error: BaseException) -> None:
        """Fail a function that its time-out did not end. On a timer's thread."""
        function = self.functions.find(execution_id) if self.functions is not None else None
        if function is None:  # called by hand: there is nobody else to end it
            return
        logger.error("job %s: its thread hangs in %s; the job fails", function.job.id, function.job.func_name)

        def fail(horse: Self, job: Job) -> None:
            horse._finalize_failure(job, function.queue, function.execution, (type(error), error, None))

        self._end_from_outside(function, fail)

    def _fail(self, function: RunningFunction, reason: str) -> None:
        def fail(horse: Self, job: Job) -> None:
            job.ended_at = now()
            horse.handle_work_horse_killed(job, os.getpid(), signal.SIGKILL, None)
            horse.handle_job_failure(job, function.queue, exc_string=reason, execution=function.execution)

        self._end_from_outside(function, fail)

    def _end_from_outside(self, function: RunningFunction, end: Callable[[Self, Job], None]) -> None:
        """End the job of a function that was abandoned, and only then forget it: a burst waits for that."""
        try:
            end(self._horse_of(function), copy.copy(function.job))
        except Abandoned:
            logger.info("job %s had ended already", function.job.id)
        except Exception:
            logger.exception("job %s cannot be ended; it runs again when its lease has run out", function.job.id)
        finally:
            self._forget(function)

    def _forget(self, function: RunningFunction) -> None:
        """Let go of a function that was abandoned."""
        self.executions.pop(function.execution.id, None)
        if self.functions is not None:
            self.functions.give_up(function)

    def _all_functions(self) -> tuple[RunningFunction, ...]:
        return self.functions.all() if self.functions is not None else ()
