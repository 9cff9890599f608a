"""The fleet's figures for Prometheus, from SQL and Redis: for a program that has no engine, `pagemill serve`."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import redis
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from worker.errors import PagemillError
from worker.metrics.exposition import expose, registry_of
from worker.queue.access import QueueAccess
from worker.queue.policy import QueuePolicy
from worker.queue.redis_jobs import queue_names
from worker.settings_model import Settings
from worker.sql.store import JobStore
from worker.worker_state import WorkerState, worker_state

MAX_QUEUES = 64  # that are told one by one; the deepest first


class FleetMetrics:
    """Answers scrapes, from any thread. Asks both services each time, and waits for them as long as a command does."""

    def __init__(self, settings: Settings, store: JobStore, connection: redis.Redis) -> None:
        self._settings = settings
        self._store = store
        self._connection = connection
        self._registry: CollectorRegistry = registry_of(self._collect)

    def expose(self, accept: str | None) -> tuple[bytes, str]:
        """Return all figures as text, and its content type. A service that does not answer is told as down; what only
        it knows is left out."""
        return expose(self._registry, accept)

    def _collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("pagemill_fleet_service_up", "1 when the service answers", labels=["service"])
        for service, read in (("redis", self._queues), ("sql", self._workers)):
            try:
                yield from tuple(read())
                up.add_metric([service], 1)
            except PagemillError:
                up.add_metric([service], 0)
        yield up

    def _queues(self) -> Iterator[Metric]:
        names = queue_names(self._connection)
        depth = QueueAccess(self._connection).depth(names)
        policy = QueuePolicy(self._connection)
        parked, paused = policy.parked(names), policy.paused()
        told = sorted(names, key=lambda name: (-depth[name], name))[:MAX_QUEUES]
        depths = GaugeMetricFamily("pagemill_fleet_queue_depth", "Jobs that nobody has claimed", labels=["queue"])
        limited = GaugeMetricFamily(
            "pagemill_fleet_parked_jobs", "Jobs that wait for their tenants' limits", labels=["queue"]
        )
        stopped = GaugeMetricFamily("pagemill_fleet_queue_paused", "1 for a queue that is paused", labels=["queue"])
        for name in told:
            depths.add_metric([name], depth[name])
            limited.add_metric([name], parked[name])
            stopped.add_metric([name], name in paused)
        yield from (depths, limited, stopped)

    def _workers(self) -> Iterator[Metric]:
        now = datetime.now(UTC)
        workers = self._store.workers()
        states = Counter(worker_state(worker, now, self._settings) for worker in workers)
        by_state = GaugeMetricFamily("pagemill_fleet_workers", "Workers by how they are", labels=["state"])
        for state in WorkerState:
            by_state.add_metric([state.value], states[state])
        yield by_state
        counters = [worker.counters for worker in workers]
        for name, documentation, total in (
            ("jobs_done", "Jobs done by all workers", sum(each.jobs_done for each in counters)),
            ("jobs_failed", "Jobs that failed, of all workers", sum(each.jobs_failed for each in counters)),
            ("prompt_tokens", "Prompt tokens of jobs done", sum(each.prompt_tokens for each in counters)),
            ("generation_tokens", "Output tokens of jobs done", sum(each.completion_tokens for each in counters)),
            ("prefix_cache_hits", "Prompt tokens from caches", sum(each.prefix_hit_tokens for each in counters)),
        ):
            yield CounterMetricFamily(f"pagemill_fleet_{name}", documentation, value=total)
