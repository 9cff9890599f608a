"""The RQ worker: registration, signals, commands and maintenance as RQ's tools know them, around many jobs at once.

`pagemill worker` runs it with an engine. `rq worker -w worker.rq_worker.PagemillWorker` runs it without one, for plain
functions only: those that the setting `functions` allows, with JSON arguments, in either case.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import redis
from rq.command import parse_payload
from rq.defaults import DEFAULT_LOGGING_DATE_FORMAT, DEFAULT_LOGGING_FORMAT
from rq.queue import Queue
from rq.registry import clean_registries
from rq.utils import now
from rq.worker import DequeueStrategy
from rq.worker_registration import clean_worker_registry, register

from worker.errors import ConfigurationError, ServiceUnavailable, TryLater
from worker.functions.allow_list import NO_FUNCTIONS, AllowList
from worker.functions.rq_draining import OUTAGE_POLL_SECONDS, DrainingWorker
from worker.functions.rq_jobs import allow_listed
from worker.functions.rq_schedule import InProcessScheduler
from worker.functions.shift import FunctionShift, ShiftLimits
from worker.queue.connection import redis_errors
from worker.queue.queue_records import Fields, FunctionRecord, PromptRecord, read_runnable
from worker.running.threads import Flag
from worker.settings import load_settings
from worker.settings_model import Settings

SAME_SIGNAL_SECONDS = 1.0  # RQ's pool and a terminal may both tell a worker to stop

logger = logging.getLogger(__name__)


class PagemillWorker(DrainingWorker):
    """An `rq.Worker` that holds many started jobs. It claims and maintains; the other threads do the rest."""

    def __init__(self, *args: Any, allow_list: AllowList = NO_FUNCTIONS, **options: Any) -> None:
        """Take what `rq.Worker` takes. RQ also makes such objects only to read one; loads nothing, starts nothing.

        `allow_list` has the functions that may run. Whatever serializer and job class RQ passes on, records are read as
        JSON, and name no function but those.
        """
        super().__init__(*args, **self._restricted(options))
        self._cancel: Callable[[str], None] = lambda job_id: None
        self._listener: Any = None  # RQ's thread that hears commands, once there is one
        self.allow(allow_list)

    def allow(self, allow_list: AllowList) -> None:
        """Set which functions may run."""
        self.allow_list = allow_list
        self.job_class = allow_listed(allow_list)
        self.queues = [self._as_told(queue) for queue in self.queues]
        self._ordered_queues = self.queues[:]

    def read(self, fields: Fields) -> PromptRecord | FunctionRecord:
        """Tell a claimed record's kind. Raises RecordError for one of none."""
        return read_runnable(fields, self.allow_list)

    @staticmethod
    def _restricted(options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "serializer": "json", "job_class": None}

    def _as_told(self, queue: Queue) -> Queue:
        """Return a queue with this worker's serializer and job class."""
        return self.queue_class(
            queue.name,
            connection=self.connection,
            job_class=self.job_class,
            serializer=self.serializer,
            death_penalty_class=self.death_penalty_class,
        )

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

    # What RQ calls.

    def work(
        self,
        burst: bool = False,
        logging_level: str | None = None,
        date_format: str = DEFAULT_LOGGING_DATE_FORMAT,
        log_format: str = DEFAULT_LOGGING_FORMAT,
        max_jobs: int | None = None,
        max_idle_time: int | None = None,
        with_scheduler: bool = False,
        dequeue_strategy: DequeueStrategy = DequeueStrategy.DEFAULT,
    ) -> bool:
        """Run plain functions, without an engine, as RQ's own worker would. Returns whether any was run.

        Raises ConfigurationError when the settings allow no function.
        """
        settings = self._settings_of_work()
        self._dequeue_strategy = dequeue_strategy
        self.stopping, self.handing_back = Flag(), Flag()  # it may have worked before
        self._stop_requested, self._shutdown_requested_date = False, None
        self.bootstrap(logging_level, date_format, log_format)
        if with_scheduler:
            self._start_scheduler(burst, logging_level, date_format, log_format)
        self.take_signals(same_within_seconds=SAME_SIGNAL_SECONDS)
        shift = FunctionShift(self, settings, self.read, ShiftLimits(max_jobs, max_idle_time))
        try:
            shift.start(self.beat)
            self.drain_queues(shift.drain, burst=burst)
            self.finish_held(shift.drain, math.inf)
        finally:
            shift.end()
            if isinstance(self.scheduler, InProcessScheduler):
                self._try_chore("leaving the schedule", self.scheduler.stop)
            self.delist()
        return shift.claimer.num_admitted > 0

    def _settings_of_work(self) -> Settings:
        settings = load_settings()
        if not settings.functions:
            raise ConfigurationError("functions: names none, and a worker without an engine runs nothing else")
        self.allow(AllowList(settings.functions))
        return settings

    def _start_scheduler(self, burst: bool = False, *arguments: Any) -> None:
        """Queue what is due once in a burst, as RQ does; else take the locks of RQ's scheduler, and fork none."""
        if burst:
            super()._start_scheduler(burst, *arguments)
            return
        self.scheduler = scheduler = InProcessScheduler(
            self.queues, connection=self.connection, serializer=self.serializer
        )
        if scheduler.acquire_locks():
            scheduler.start()

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
        if command == "shutdown":
            self._request_stop()
        elif command == "kill-horse":
            self.kill_horse()
        elif command == "stop-execution" and self.functions is not None and self.functions.find_job(job_id):
            self.request_stop_execution(str(payload.get("execution_id", "")))
        elif command in ("stop-job", "stop-execution") and not self.stop_function(job_id):
            self._cancel(job_id)

    def clean_registries(self) -> None:
        """Do what RQ's own workers do for each other and for their own lapsed jobs. Ours lapse by their leases, for
        `sweep` to queue; in RQ's registry of started jobs they do not run out."""
        # First, so that what fails here is tried again at the next maintenance, not at once.
        self.last_cleaned_at = now()  # type: ignore[assignment]  # RQ declares it by its first value, None
        for queue in self.queues:
            if queue.acquire_maintenance_lock():
                try:
                    clean_registries(queue, self._exc_handlers)
                    clean_worker_registry(queue)
                    queue.intermediate_queue.cleanup(self, queue)
                finally:
                    queue.release_maintenance_lock()

    def _pubsub_exception_handler(self, exc: BaseException, pubsub: Any, pubsub_thread: Any) -> None:
        """Keep listening through any trouble with Redis; RQ's own handler gives up after a time-out."""
        if not isinstance(exc, redis.RedisError | OSError):
            raise exc
        logger.debug("listening to RQ's commands is interrupted: %s", exc)
        time.sleep(OUTAGE_POLL_SECONDS)
