"""The flow of jobs through one worker: its parts and threads, from the claim to the acknowledgement, and their end.

    main thread        claims from Redis, records attempts in SQL
    intake             tokenizes
    engine             steps
    persister          commits to SQL, then acknowledges in Redis
    live               cancels, streams tokens
    upkeep             leases, presence, reconciling, outbox, summaries, ...: a thread each, see worker.running.upkeep

Torch-free: the model comes as an engine and two functions.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis

from engine.detokenizing import Detokenizer
from engine.engine import Engine
from worker.backoff import Backoff
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.functions.pool import FunctionPool, RunningFunction
from worker.log_fields import at_hand
from worker.metrics.job_tally import JobTally
from worker.metrics.queue_depths import QueueDepths
from worker.metrics.step_log import StepLog
from worker.metrics.worker_metrics import WorkerMetrics
from worker.progress import WorkerProgress
from worker.queue.delayed import DelayedJobs
from worker.queue.suspects import Suspects
from worker.records import Lease
from worker.running.appetite import Appetite
from worker.running.beats import Leases
from worker.running.claiming import Claimer
from worker.running.crash_journal import Journal, NoJournal
from worker.running.drain import Drain
from worker.running.duty import SuspectDuty
from worker.running.engine_loop import Abort, EngineLoop, Stop
from worker.running.failpoints import Failpoints, parse_faults
from worker.running.health_server import serving_health
from worker.running.held import HeldJob, HeldJobs
from worker.running.intake import CompileGrammars, Encode, Intake
from worker.running.live import Live
from worker.running.outcomes import OutcomeBuilder
from worker.running.own_parts import make_account, make_queue, make_worker
from worker.running.persister import Persister
from worker.running.threads import POLL_SECONDS, Failure, ServiceThread
from worker.running.upkeep import Upkeep
from worker.settings_model import Settings
from worker.sql.fleet import WorkerRecord
from worker.sql.store import JobStore
from worker.tracing.tracer import make_tracer

PATIENCE_SECONDS = 10.0  # for a thread to do its last work
HURRY_SECONDS = 0.5  # the same after a second request to stop

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the flow needs of a loaded model."""

    engine: Engine
    encode: Encode
    compile_grammars: CompileGrammars
    decode: Detokenizer
    names: frozenset[str]  # what a job may call it
    bytes_per_block: int  # of KV
    peak_memory_bytes: Callable[[], int]


class Flow:
    """Everything between the queue and the database. Built whole, and run once."""

    def __init__(
        self,
        settings: Settings,
        connection: redis.Redis,
        store: JobStore,
        model: ServedModel,
        record: WorkerRecord,
        journal: Journal | None = None,
        began: float | None = None,
    ) -> None:
        """`record.name` names the worker everywhere; `journal` is the one that the model's runner writes as well; the
        worker's account is from `began` on, in seconds on the monotonic clock; None is from the engine's making on.
        Raises ServiceUnavailable when Redis does not answer."""
        self._settings = settings
        self._store = store
        failpoints = Failpoints(parse_faults(settings.failpoints))
        self._record = record
        self._journal = journal = journal or NoJournal()
        self.worker = make_worker(settings, connection, record.name)
        self._held = HeldJobs(settings.max_jobs)
        self._failure = Failure()
        if settings.functions:
            self.worker.functions = FunctionPool(
                settings.function_threads, self._held, self._serve_function, self._failure
            )
        self._queue = job_queue = make_queue(settings, connection, self.worker)
        self._outcomes = outcomes = OutcomeBuilder(
            model.decode,
            model.engine.config,
            model.bytes_per_block,
            model.peak_memory_bytes,
            time.monotonic,
            Backoff(settings.retry_base_seconds, settings.retry_cap_seconds),
        )
        tally, steps = JobTally(), StepLog()
        self._tracer = make_tracer(settings, record, self._held)
        depths = QueueDepths(connection, record.name, settings.queues, settings.beat_seconds)
        self._live = Live(job_queue, self._held, model.decode, self._cancel, self.worker.stop_function)
        account = make_account(record.name, model.engine, began)
        self._persister = Persister(
            store, job_queue, self._held, outcomes, self._live.end_streams, failpoints, tally, account, self._tracer
        )
        self._loop = EngineLoop(model.engine, outcomes, self._persister.put, failpoints, steps)
        self._intake = Intake(
            model.encode,
            model.compile_grammars,
            model.names,
            outcomes,
            self._loop.send,
            self._persister.put,
            journal,
        )
        suspects = Suspects(connection, record.name, settings.lease_seconds, read=self.worker.read)
        leases = Leases(job_queue, self._held, self._lose, self._cancel, suspects)
        self._upkeep = Upkeep(
            settings,
            connection,
            store,
            self.worker,
            job_queue,
            self._held,
            leases,
            suspects,
            self._loop,
            self._persister,
            failpoints,
            depths,
            account,
        )
        self._metrics = WorkerMetrics(
            record,
            model.engine,
            self._held,
            tally,
            steps,
            depths,
            self._upkeep.services,
            self._upkeep.report,
            model.peak_memory_bytes,
        )
        self.health_port: int | None = None  # while somebody may ask there
        self._delayed = DelayedJobs(job_queue, settings.queues, settings.retry_cap_seconds)
        self._claimer = Claimer(
            job_queue,
            store,
            self._held,
            settings.queues,
            Appetite(self._held, model.engine.config, model.engine.status),
            SuspectDuty(suspects, journal, self._held, settings.queues, self._give_back, self._give_back_functions),
            self.worker,
            self._intake.put,
            self._lose,
            failpoints,
            tally,
            self._tracer,
        )

    def progress(self) -> WorkerProgress:
        """Return the state now; from any thread. Raises ServiceUnavailable when Redis is down."""
        status, counters = self._loop.engine.status(), self._persister.counters
        return WorkerProgress(
            waiting=self._queue.depth(self._settings.queues),
            held=len(self._held),
            running=status.num_running,
            jobs_done=counters.jobs_done,
            jobs_failed=counters.jobs_failed,
            output_tokens=status.output_tokens,
            blocks_held=status.blocks_held,
            blocks_cached=status.blocks_cached,
            num_blocks=status.num_blocks,
        )

    def run(self, *, burst: bool) -> None:
        """Drain the queues until the worker is told to stop, or in a burst until they are empty, and no job is delayed
        by less than the longest back-off.

        Raises ConfigurationError when the health endpoint cannot listen where it should, ServiceUnavailable or TryLater
        when a service is down at the start, and TryLater when a part of the worker failed; whatever ends it, what was
        held has been handed back then, services permitting.
        """
        with serving_health(
            self._settings.health_listener(), self._upkeep.report, self._metrics.expose
        ) as self.health_port:
            self._run(burst=burst)

    def _run(self, *, burst: bool) -> None:
        self._store.register_worker(self._record)
        try:
            self._queue.check_permissions()  # a claim that an ACL stops halfway would lose what it had popped
            self.worker.enlist(self._cancel)
            logger.info("worker %s drains %s", self._record.name, ", ".join(self._settings.queues))
            self._work(burst=burst)
        finally:
            self.worker.delist()
            self._upkeep.leave()
            self._tracer.close()
        if self._failure.error is not None:
            raise TryLater(f"the worker stopped and gave its jobs back: {self._failure.error}") from self._failure.error

    def _work(self, *, burst: bool) -> None:
        targets = {
            "intake": self._intake.run,
            "engine": self._loop.run,
            "persister": self._persister.run,
            "live": self._live.run,
            **self._upkeep.targets,
        }
        threads = {name: ServiceThread(name, target, self._failure) for name, target in targets.items()}
        for thread in threads.values():
            thread.start()
        drain = Drain(self._claimer, self._delayed, self._held, self._failure, self._settings.sweep_seconds)
        try:
            if burst:
                self._upkeep.catch_up()  # a burst may be over before the first beat
            self.worker.drain_queues(drain, burst=burst)
            self._hand_back_unrecorded()
            self.worker.finish_held(drain, self._settings.drain_seconds)
        except PagemillError:
            raise
        except Exception as error:
            self._failure.report(error, "the main loop")
        finally:
            self._shut_down(threads)

    def _hand_back_unrecorded(self) -> None:
        try:
            self._claimer.hand_back()
        except (ServiceUnavailable, TryLater) as error:
            self._journal.leave()
            logger.warning("some jobs stay leased for %g s: %s", self._settings.lease_seconds, error)

    def _shut_down(self, threads: dict[str, ServiceThread]) -> None:
        """Stop the threads in the direction of the flow, so that each job is finished or handed back, and only once."""
        self._requeue(self.worker.hand_back_functions())
        self._intake.stop()
        self._await(threads["intake"])
        self._loop.send(Stop())
        self._await(threads["engine"])
        unfinished = self._held.unfinished()
        if unfinished:
            logger.info("handing back %d jobs", len(unfinished))
        for job in unfinished:
            self._persister.put(self._outcomes.handed_back(job))
        self._persister.stop()
        self._await(threads["persister"])
        self._persister.give_up()
        self._upkeep.stop()
        self._requeue_left()
        self._live.stop()
        for thread in threads.values():
            thread.join(PATIENCE_SECONDS)

    def _await(self, thread: ServiceThread) -> None:
        """Wait for a thread's end, but not for ever: one that hangs must not keep jobs from being given back."""
        started = time.monotonic()
        while thread.is_alive():
            patience = HURRY_SECONDS if self.worker.handing_back.is_set() else PATIENCE_SECONDS
            if time.monotonic() - started > patience:
                return
            thread.join(POLL_SECONDS)

    def _requeue_left(self) -> None:
        """Give back what could not be persisted. Should its outcome be committed yet, the next worker only acknowledges
        it; should it be claimed first, that commit is fenced."""
        left = self._held.all()
        self._held.remove(job.claim.execution_id for job in left)
        self._requeue([job.claim for job in left])

    def _requeue(self, claims: Sequence[Lease]) -> None:
        try:
            self._queue.requeue(claims)
        except (ServiceUnavailable, TryLater) as error:
            self._journal.leave()
            logger.warning("%d jobs stay leased for %g s: %s", len(claims), self._settings.lease_seconds, error)

    def _give_back_functions(self) -> None:
        self._queue.requeue(self.worker.take_functions())

    def _serve_function(self, function: RunningFunction) -> None:
        fields = {"job_id": function.job.id, "queue": function.queue.name}
        with self._journal.aside(function.execution.id), at_hand(fields):
            self.worker.serve(function)

    def _cancel(self, job_id: str) -> None:
        job = self._held.find(job_id)
        if job is not None:
            job.cancel_requested = True
            self._loop.send(Abort(job.claim.execution_id))

    def _give_back(self, job: HeldJob) -> None:
        self._persister.put(self._outcomes.handed_back(job))
        self._lose(job)

    def _lose(self, job: HeldJob) -> None:
        job.lost = True
        self._loop.send(Abort(job.claim.execution_id))
