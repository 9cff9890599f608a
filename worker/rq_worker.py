"""The RQ worker: registration, signals, commands and maintenance as RQ's tools know them, around many jobs at once."""

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import redis
from rq import Worker
from rq.command import parse_payload
from rq.rate_limit import RateLimitRegistry
from rq.registry import DeferredJobRegistry, FailedJobRegistry, FinishedJobRegistry, ReadyJobRegistry
from rq.utils import now
from rq.worker import WorkerStatus
from rq.worker_registration import clean_worker_registry, register

from worker.claiming import Claimer
from worker.connection import redis_errors
from worker.delayed import DelayedJobs
from worker.errors import ServiceUnavailable, TryLater
from worker.held import HeldJobs
from worker.threads import Failure, Flag

IDLE_POLL_SECONDS = 0.1
OUTAGE_POLL_SECONDS = 1.0
MAINTENANCE_SECONDS = 60
SHORTEST_TTL_SECONDS = 60  # of the worker's entry, without a beat; RQ adds 60 more
BEATS_TO_MISS = 3  # before the worker's entry goes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drain:
    """What a worker drains its queues with."""

    claimer: Claimer
    delayed: DelayedJobs
    held: HeldJobs
    failure: Failure
    sweep_seconds: float


class PagemillWorker(Worker):
    """An `rq.Worker` that holds many started jobs. It claims and maintains; the other threads do the rest."""

    def __init__(self, *args: Any, beat_seconds: float = 0.0, **options: Any) -> None:
        """Take what `rq.Worker` takes. RQ also makes such objects only to read one; loads nothing, starts nothing.

        `beat_seconds` is the time between two calls of `beat`.
        """
        ttl = max(SHORTEST_TTL_SECONDS, round(BEATS_TO_MISS * beat_seconds))
        fixed = {"serializer": "json", "worker_ttl": ttl, "maintenance_interval": MAINTENANCE_SECONDS}
        super().__init__(*args, **{**options, **fixed})
        self.stopping = Flag()  # set by the first request to stop: claim nothing more
        self.handing_back = Flag()  # set by the second: finish nothing more either
        self._cancel: Callable[[str], None] = lambda job_id: None
        self._listener: Any = None  # RQ's thread that hears commands, once there is one

    def take_signals(self) -> None:
        """Let SIGINT and SIGTERM stop the worker, from here to the end of the process. On the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def enlist(self, cancel: Callable[[str], None]) -> None:
        """Appear in RQ's lists and listen to its commands; `cancel` ends a held job by id, from any thread.

        Raises ServiceUnavailable or TryLater. A full Redis does not take the entry, but only a worker can make room
        there: the entry follows with a later beat.
        """
        self._cancel = cancel
        try:
            with redis_errors():
                self.register_birth()
        except TryLater as error:
            if self.birth_date is None:  # it was refused before the entry was even made
                raise
            logger.warning("cannot appear in RQ's lists yet: %s", error)
        with redis_errors():
            self.subscribe()
        self._listener = self.pubsub_thread

    def delist(self) -> None:
        """Disappear from RQ's lists. A Redis that is down forgets the worker by itself after its TTL."""
        try:
            with redis_errors():
                self.unsubscribe()
                self.register_death()
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("cannot leave RQ's lists: %s", error)
            if self._listener is not None:
                self._listener.stop()

    def beat(self) -> None:
        """Renew the worker's entry, rewriting it if it was lost. Raises ServiceUnavailable or TryLater."""
        # No transaction: a full Redis refuses the writes, but must still take the new time to live.
        with redis_errors(), self.connection.pipeline(transaction=False) as pipeline:
            self.heartbeat(pipeline=pipeline)
            pipeline.hset(self.key, mapping={**self.serialize(), "state": self.get_state()})
            register(self, pipeline)
            pipeline.execute()

    def drain_queues(self, drain: Drain, *, burst: bool) -> None:
        """Claim until told to stop or until a thread died, or in a burst until nothing waits, nothing is held and
        no delayed job is due in reach."""
        next_sweep = time.monotonic()
        is_down = False
        while not self.stopping.is_set() and drain.failure.error is None:
            was_empty = not len(drain.held)
            if time.monotonic() >= next_sweep:
                self._try_chore("sweep", drain.claimer.sweep)
                next_sweep = time.monotonic() + drain.sweep_seconds
            self._try_chore("enqueueing delayed jobs", drain.delayed.enqueue_due)
            if self.should_run_maintenance_tasks:
                self._try_chore("maintenance", self.run_maintenance_tasks)
            try:
                num_taken = drain.claimer.claim()
                is_over = burst and was_empty and not num_taken and not drain.delayed.in_reach()
            except (ServiceUnavailable, TryLater) as error:
                if not is_down:
                    logger.warning("claims stop: %s", error)
                is_down = True
                self.stopping.wait(OUTAGE_POLL_SECONDS)
                continue
            if is_down:
                logger.warning("claims go on")
            is_down = False
            self._show(WorkerStatus.BUSY if len(drain.held) else WorkerStatus.IDLE)
            if is_over:
                return
            if not num_taken:
                drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def finish_held(self, drain: Drain, drain_seconds: float) -> None:
        """Wait until nothing is held, the time is up, a second request to stop came or a thread died."""
        deadline = time.monotonic() + drain_seconds
        if len(drain.held):
            logger.info("claims end; %d held jobs have %g s to finish", len(drain.held), drain_seconds)
        while len(drain.held) and time.monotonic() < deadline:
            if self.handing_back.is_set() or drain.failure.error is not None:
                return
            drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def _try_chore(self, name: str, chore: Callable[[], None]) -> None:
        """Do what can also be left undone for once: nothing that goes wrong here may keep jobs from being claimed."""
        try:
            with redis_errors():
                chore()
        except (ServiceUnavailable, TryLater) as error:
            logger.info("%s is put off: %s", name, error)
        except Exception:
            logger.exception("%s failed", name)

    def _show(self, state: WorkerStatus) -> None:
        """Set the state that RQ's tools show; one that Redis does not take now follows with the next beat."""
        if self.get_state() != state:
            self._try_chore("showing the state", lambda: self.set_state(state))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._request_stop()

    def _request_stop(self) -> None:
        """Only note it: in a signal handler anything more could run inside anything else."""
        if self.stopping.is_set():
            self.handing_back.set()
        self.stopping.set()

    # What RQ calls.

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Keep the connection's time-outs: RQ would raise them above its longest blocking pop, which is never made."""
        return connection

    def handle_payload(self, message: Any) -> None:
        """Answer RQ's commands: shutting down, and stopping one of many jobs. RQ's own code knows one job at a time."""
        try:
            payload = parse_payload(message)
            command, job_id = payload["command"], str(payload.get("job_id", ""))
        except (AttributeError, KeyError, TypeError, ValueError):
            logger.warning("a command that is none of RQ's was ignored")
            return
        if command in ("stop-job", "stop-execution"):
            self._cancel(job_id)
        elif command == "shutdown":
            self._request_stop()

    def clean_registries(self) -> None:
        """Expire old entries. Not RQ's started registry: it fails jobs whose lease ran out, `sweep` queues them."""
        self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ declares it by its first value, None
        for queue in self.queues:
            for registry in (FinishedJobRegistry, FailedJobRegistry, DeferredJobRegistry, ReadyJobRegistry):
                registry(queue=queue).cleanup()
            clean_worker_registry(queue)
        for limits in RateLimitRegistry.all(self.connection):
            limits.cleanup()

    def _pubsub_exception_handler(self, exc: BaseException, pubsub: Any, pubsub_thread: Any) -> None:
        """Keep listening whatever happens, an outage above all; RQ's own handler gives up after a time-out."""
        if not isinstance(exc, Exception):
            raise exc
        logger.debug("listening to RQ's commands is interrupted: %s", exc)
        time.sleep(OUTAGE_POLL_SECONDS)
