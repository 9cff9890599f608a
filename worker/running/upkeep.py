"""What a worker repeats while it lives, each in a thread of its own: one that hangs must not hold up another.

leases      renews them in Redis, with the worker's entry in RQ's lists
presence    says in SQL that worker and engine are there
reconcile   compares SQL with Redis now and then
outbox      queues what apps have submitted within their own transactions
schedules   fires them, where it leads the schedulers
tidy        rolls up the hours that are over, and purges what is old
summaries   takes over what jobs have put out that summarise documents
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import redis

from worker.cron.scheduler import TICK_SECONDS, Scheduler
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.metrics.queue_depths import QueueDepths
from worker.outbox.relaying import Relay
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import Suspects
from worker.rag.collecting import collect_summaries
from worker.reconciling import RealRepairs, Reconciler
from worker.rq_worker import PagemillWorker
from worker.running.account import WorkerAccount
from worker.running.beats import Beat, Leases
from worker.running.engine_loop import EngineLoop
from worker.running.failpoints import Failpoints
from worker.running.health import Health, HealthReport
from worker.running.held import HeldJobs
from worker.running.persister import Persister
from worker.running.reconcile_chore import ReconcileChore, rest
from worker.running.tidying import TidyChore
from worker.settings_model import Settings
from worker.sql.store import JobStore

SCHEDULER_PATIENCE_SECONDS = 2.0  # for runs to stop where they are

logger = logging.getLogger(__name__)


class Upkeep:
    """The beats of one worker, and its health, which they tell of."""

    def __init__(
        self,
        settings: Settings,
        connection: redis.Redis,
        store: JobStore,
        worker: PagemillWorker,
        job_queue: JobQueue,
        held: HeldJobs,
        leases: Leases,
        suspects: Suspects,
        loop: EngineLoop,
        persister: Persister,
        failpoints: Failpoints,
        depths: QueueDepths,
        account: WorkerAccount,
    ) -> None:
        self._store = store
        self._connection = connection
        self._worker = worker
        self._queue = job_queue
        self._leases = leases
        self._suspects = suspects
        self._persister = persister
        self._depths = depths
        self._account = account
        self._engine_status = loop.engine.status
        self._chore = ReconcileChore(
            Reconciler(store, connection, RealRepairs(store, connection, settings.result_ttl_seconds), rest),
            connection,
            settings.reconcile_seconds,
            stopped=lambda: self._beats["reconcile"].is_stopped,
        )
        self._relay = Relay(
            store,
            connection,
            settings.result_ttl_seconds,
            failpoints,
            stopped=lambda: self._beats["outbox"].is_stopped,
        )
        self._tidy = TidyChore(store.database, settings, stopped=lambda: self._beats["tidy"].is_stopped)
        self._beats = {
            "leases": Beat(self._beat_in_redis, settings.beat_seconds, "renew leases"),
            "presence": Beat(self._beat_in_sql, settings.beat_seconds, "beat in SQL"),
            "tidy": Beat(self._tidy.run, settings.tidy_seconds, "tidy the database"),
            "reconcile": Beat(self._chore.run, settings.sweep_seconds, "reconcile the queue with SQL"),
            "outbox": Beat(self._empty_outbox, settings.outbox_seconds, "empty the outbox"),
            "summaries": Beat(self._collect_summaries, settings.sweep_seconds, "take over summaries"),
        }
        self._scheduler = Scheduler(
            worker.name,
            store.database,
            connection,
            settings,
            failpoints,
            stopped=lambda: self._beats["schedules"].is_stopped,
        )
        if settings.scheduler:
            self._beats["schedules"] = Beat(self._scheduler.tick, TICK_SECONDS, "look for due schedules")
        self._health = Health(
            settings,
            worker.name,
            loop.pulse,
            held,
            loop.engine.status,
            claims_state=lambda: worker.claims_state,
            beats=self.services,
            send=loop.send,
        )

    @property
    def services(self) -> Mapping[str, Beat]:
        """The beat that tells of each service whether it answers."""
        return {"Redis": self._beats["leases"], "SQL": self._beats["presence"]}

    @property
    def targets(self) -> Mapping[str, Callable[[], None]]:
        """What to run in threads, by name."""
        return {name: beat.run for name, beat in self._beats.items()}

    def report(self) -> HealthReport:
        """Return the worker's health now; from any thread."""
        return self._health.report()

    def catch_up(self) -> None:
        """Rebuild a queue that was lost, if it is time to, and empty the outbox. Services that do not answer are
        logged."""
        try:
            self._chore.run()
            self._empty_outbox()
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("the queue may lack jobs that SQL has: %s", error)

    def stop(self) -> None:
        """Let the threads end."""
        for beat in self._beats.values():
            beat.stop()

    def leave(self) -> None:
        """Hand the schedules over, and say in SQL that the worker stopped, with its last counters and the rest of its
        account; take over the last summaries. A service that is down is logged."""
        self._scheduler.close(SCHEDULER_PATIENCE_SECONDS)
        self._account.close()
        try:
            self._collect_summaries()  # a burst may be over before the first beat
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("summaries are left to be taken over: %s", error)
        try:
            self._beat_in_sql()
            self._store.stop_worker(self._worker.name)
        except ServiceUnavailable as error:
            logger.warning("cannot say in SQL that the worker stopped: %s", error)

    def _empty_outbox(self) -> None:
        try:
            self._relay.run()
        except PagemillError:
            raise
        except Exception:  # nothing that is wrong with an app's rows may end the worker
            logger.exception("emptying the outbox failed")

    def _beat_in_redis(self) -> None:
        self._leases.renew()
        self._worker.renew_functions(self._queue, self._suspects)
        self._worker.beat()
        self._depths.refresh()

    def _collect_summaries(self) -> None:
        collect_summaries(self._store, self._connection)

    def _beat_in_sql(self) -> None:
        engine_age = timedelta(seconds=self._health.probe())
        entry = self._account.entry()
        offload = self._engine_status().offload
        counters = replace(
            self._persister.counters, kv_blocks_out=offload.blocks_out, kv_blocks_back=offload.blocks_back
        )
        self._store.heartbeat_worker(self._worker.name, counters, engine_age, entry.hours)
        self._account.forget(entry)
