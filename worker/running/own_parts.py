"""What a worker has of its own of other areas' parts: its account, itself as RQ knows it, its view of the queue."""

import redis

from engine.block_ledger import NS
from engine.engine import Engine
from worker.functions.allow_list import AllowList
from worker.queue.connection import redis_errors
from worker.queue.job_queue import JobQueue
from worker.rq_worker import PagemillWorker
from worker.running.account import WorkerAccount
from worker.settings_model import Settings
from worker.sql.tables import utc_now

MAINTENANCE_SECONDS = 60
SHORTEST_TTL_SECONDS = 60  # of the worker's entry in RQ's lists, without a beat; RQ adds 60 more
BEATS_TO_MISS = 3  # before that entry goes


def make_account(worker_name: str, engine: Engine, began: float | None) -> WorkerAccount:
    """Return the worker's account, from `began` on, in seconds on the monotonic clock; None is from the engine's making
    on."""
    began = engine.ledger.account.began_ns / NS if began is None else began
    return WorkerAccount(worker_name, lambda: engine.ledger.account, engine.config.num_blocks, began, utc_now)


def make_worker(settings: Settings, connection: redis.Redis, name: str) -> PagemillWorker:
    """Return the worker as RQ knows it. Raises ServiceUnavailable when Redis does not answer."""
    with redis_errors():
        return PagemillWorker(
            list(settings.queues),
            name=name,
            connection=connection,
            allow_list=AllowList(settings.functions),
            worker_ttl=max(SHORTEST_TTL_SECONDS, round(BEATS_TO_MISS * settings.beat_seconds)),
            maintenance_interval=MAINTENANCE_SECONDS,
        )


def make_queue(settings: Settings, connection: redis.Redis, worker: PagemillWorker) -> JobQueue:
    """Return the queue as this worker sees it."""
    return JobQueue(
        connection,
        worker.name,
        settings.lease_seconds,
        default_result_ttl_seconds=settings.result_ttl_seconds,
        lower_queue_share=settings.lower_queue_share,
        read=worker.read,
    )
