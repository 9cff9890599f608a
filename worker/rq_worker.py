"""The RQ worker: registration, signals, commands and maintenance as RQ's tools know them, around many jobs at once."""

import logging
import signal
import threading
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
from rq.worker_registration import clean_worker_registry

from worker.claiming import Claimer
from worker.connection import redis_errors
from worker.errors import ServiceUnavailable, TryLater
from worker.held import HeldJobs
from worker.threads import Failure

IDLE_POLL_SECONDS = 0.1
OUTAGE_POLL_SECONDS = 1.0
MAINTENANCE_SECONDS = 60
WORKER_TTL_SECONDS = 60  # without a beat; RQ adds 60 more at birth

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drain:
    """What a worker drains its queues with."""

    claimer: Claimer
    held: HeldJobs
    failure: Failure
    sweep_seconds: float
    cancel: Callable[[str], None]  # ends a held job by id; from any thread


class PagemillWorker(Worker):
    """An `rq.Worker` that holds many started jobs. It claims and maintains; the service's threads do the rest."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what `rq.Worker` takes. RQ also makes such objects only to read one; loads nothing, starts nothing."""
        fixed = {"serializer": "json", "worker_ttl": WORKER_TTL_SECONDS, "maintenance_interval": MAINTENANCE_SECONDS}
        super().__init__(*args, **{**options, **fixed})
        self.stopping = threading.Event()  # set by the first signal: claim nothing more
        self.hand_back = threading.Event()  # set by the second: finish nothing more either
        self._cancel: Callable[[str], None] = lambda job_id: None

    def register(self) -> None:
        """Appear in RQ's lists, listen to its commands, and take the process's signals. On the main thread."""
        with redis_errors():
            self.register_birth()
            self.subscribe()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def drain_queues(self, drain: Drain, *, burst: bool) -> None:
        """Claim until told to stop, or in a burst until nothing waits and nothing is held."""
        self._cancel = drain.cancel
        next_sweep = time.monotonic()
        while not self.stopping.is_set() and drain.failure.error is None:
            was_empty = not len(drain.held)
            try:
                if time.monotonic() >= next_sweep:
                    drain.claimer.sweep()
                    next_sweep = time.monotonic() + drain.sweep_seconds
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                num_taken = drain.claimer.claim()
                self._show(WorkerStatus.BUSY if len(drain.held) else WorkerStatus.IDLE)
            except (ServiceUnavailable, TryLater) as error:
                logger.warning("claims stop: %s", error)
                self.stopping.wait(OUTAGE_POLL_SECONDS)
                continue
            if burst and was_empty and not num_taken:
                return
            if not num_taken:
                drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def finish_held(self, drain: Drain, drain_seconds: float) -> None:
        """Wait until nothing is held, the time is up, a second signal came or a thread died."""
        deadline = time.monotonic() + drain_seconds
        while len(drain.held) and time.monotonic() < deadline:
            if self.hand_back.is_set() or drain.failure.error is not None:
                return
            drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def _show(self, state: WorkerStatus) -> None:
        if self._state != state:
            with redis_errors():
                self.set_state(state)

    def unregister(self) -> None:
        """Disappear from RQ's lists. A Redis that is down forgets the worker by itself after its TTL."""
        try:
            with redis_errors():
                self.unsubscribe()
                self.register_death()
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("cannot unregister: %s", error)

    def beat(self) -> None:
        """Renew the worker's own entry, rewriting it if it expired meanwhile."""
        with redis_errors(), self.connection.pipeline() as pipeline:
            self.heartbeat(WORKER_TTL_SECONDS + 60, pipeline=pipeline)
            pipeline.hset(self.key, mapping=self.serialize())
            pipeline.execute()

    # What RQ calls.

    def _set_connection(self, connection: redis.Redis) -> redis.Redis:
        """Keep the connection's time-outs: RQ would raise them above its longest blocking pop, which is never made."""
        return connection

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Only note the signal: anything more could run inside anything else."""
        if self.stopping.is_set():
            self.hand_back.set()
        self.stopping.set()

    def handle_payload(self, message: Any) -> None:
        """Answer RQ's commands. Stopping one of many jobs is ours; RQ's own code knows one at a time."""
        payload = parse_payload(message)
        if payload["command"] in ("stop-job", "stop-execution"):
            self._cancel(str(payload.get("job_id", "")))
        else:
            super().handle_payload(message)

    def clean_registries(self) -> None:
        """Expire old entries. Not RQ's started registry: it fails jobs whose lease ran out, `sweep` queues them."""
        with redis_errors():
            for queue in self.queues:
                for registry in (FinishedJobRegistry, FailedJobRegistry, DeferredJobRegistry, ReadyJobRegistry):
                    registry(queue=queue).cleanup()
                clean_worker_registry(queue)
            for limits in RateLimitRegistry.all(self.connection):
                limits.cleanup()
        self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ declares it by its first value, None

    def _pubsub_exception_handler(self, exc: Exception, pubsub: Any, pubsub_thread: Any) -> None:
        """Keep listening through an outage of any kind; RQ's own handler gives up after a time-out."""
        if not isinstance(exc, redis.RedisError):
            raise exc
        time.sleep(OUTAGE_POLL_SECONDS)
