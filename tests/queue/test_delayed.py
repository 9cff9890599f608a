"""Delayed jobs: RQ's scheduled ones, and how they come into their queues."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue, RateLimit
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry

from scripts.fault_table.mutations import MUTATIONS, real_record
from tests.queue.conftest import LossyProxy
from worker.client import submit
from worker.errors import ServiceUnavailable
from worker.queue.access import Cancellation, CancelOutcome
from worker.queue.connection import connect
from worker.queue.job_queue import Acknowledgement, DueJobs, JobQueue
from worker.queue.scripts import load_script
from worker.records import AttemptState

Delay = Callable[..., str]


def queue_of(connection: redis.Redis, name: str = "default") -> Queue:
    return Queue(name, connection=connection, serializer="json")


def fetch(connection: redis.Redis, job_id: str) -> Job:
    return Job.fetch(job_id, connection=connection, serializer="json")


@pytest.fixture
def delay(queue_connection: redis.Redis) -> Delay:
    """Enqueue a job with RQ, `seconds` from now; return its id."""

    def delay(seconds: float, queue: str = "default", **options: Any) -> str:
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        return str(queue_of(queue_connection, queue).enqueue_at(at, "pagemill.prompt", {"prompt": "x"}, **options).id)

    return delay


def test_due_jobs_are_claimed_in_the_order_of_their_times(worker_queue: JobQueue, delay: Delay) -> None:
    second, first, later = delay(-10), delay(-20), delay(600)
    assert worker_queue.claim(["default"], 8).claims == ()
    due = worker_queue.enqueue_due(["default", "other"])
    assert due.moved == (first, second)
    assert due.next_in_seconds == pytest.approx(600, abs=5)
    assert [claim.job_id for claim in worker_queue.claim(["default"], 8).claims] == [first, second]
    assert later not in worker_queue.enqueue_due(["default"]).moved


def test_nothing_delayed_is_never_due(worker_queue: JobQueue) -> None:
    assert worker_queue.enqueue_due(["default"]) == DueJobs((), None)


def test_a_moved_job_is_as_rqs_scheduler_leaves_it(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    job = queue_of(queue_connection).enqueue_in(timedelta(seconds=-1), "pagemill.prompt", {"prompt": "x"}, ttl=500)
    assert job.enqueued_at is None
    worker_queue.enqueue_due(["default"])
    moved = fetch(queue_connection, job.id)
    assert moved.get_status() == JobStatus.QUEUED
    assert moved.enqueued_at is not None
    assert (moved.origin, moved.ttl) == ("default", 500)
    assert 490 < queue_connection.ttl(moved.key) <= 500
    assert ScheduledJobRegistry("default", connection=queue_connection).get_job_ids() == []
    assert queue_of(queue_connection).job_ids == [job.id]


def test_a_job_for_the_front_goes_there(
    queue_connection: redis.Redis, worker_queue: JobQueue, delay: Delay, enqueue: Callable[..., list[str]]
) -> None:
    (waiting,) = enqueue(1)
    front, back = delay(-1, at_front=True), delay(-1)
    worker_queue.enqueue_due(["default"])
    assert queue_of(queue_connection).job_ids == [front, waiting, back]


def test_many_workers_move_each_job_once(queue_connection: redis.Redis, worker_queue: JobQueue, delay: Delay) -> None:
    ids = [delay(-1) for _ in range(100)]
    moved: list[str] = []

    def move() -> None:
        moved.extend(worker_queue.enqueue_due(["default"]).moved)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(moved) == Counter(ids)
    assert Counter(queue_of(queue_connection).job_ids) == Counter(ids)


def test_what_has_gone_is_not_moved(queue_connection: redis.Redis, worker_queue: JobQueue, delay: Delay) -> None:
    deleted, ended, odd = delay(-1), delay(-1), delay(-1)
    queue_connection.delete(Job.key_for(deleted), Job.key_for(odd))
    queue_connection.set(Job.key_for(odd), "not a hash")
    queue_connection.hset(Job.key_for(ended), "status", "canceled")
    assert worker_queue.enqueue_due(["default"]).moved == (odd,)
    claimed = worker_queue.claim(["default"], 8)
    assert [record.job_id for record in claimed.dead] == [odd]
    assert queue_connection.zcard("rq:scheduled:default") == 0


def test_a_rate_limit_holds_for_delayed_jobs(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target, limit = queue_of(queue_connection), RateLimit("one at a time", 1)
    jobs = [
        target.enqueue_in(timedelta(seconds=-9 + place), "pagemill.prompt", {"prompt": "x"}, rate_limit=limit)
        for place in range(3)
    ]
    assert worker_queue.enqueue_due(["default"]).moved == tuple(job.id for job in jobs)
    ended = []
    for _ in jobs:
        (claim,) = worker_queue.claim(["default"], 8).claims
        worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE)])
        ended.append(claim.job_id)
    assert Counter(ended) == Counter(job.id for job in jobs)
    assert worker_queue.claim(["default"], 8).claims == ()


@pytest.mark.parametrize(
    ("key", "concurrency"),
    [("x", "many"), ("x", "0"), ("x", "1e400"), ("x", "-1"), ("taken", "1"), ("taken too", "1")],
)
def test_a_corrupt_rate_limit_loses_no_job(
    queue_connection: redis.Redis, worker_queue: JobQueue, delay: Delay, key: str, concurrency: str
) -> None:
    queue_connection.set("rq:rl:taken", "not a hash")
    queue_connection.set("rq:rl:taken too:rate_limited", "not a set")
    corrupt, sound = delay(-2), delay(-1)
    limit: dict[Any, Any] = {"rate_limit_key": key, "rate_limit_concurrency": concurrency}
    queue_connection.hset(Job.key_for(corrupt), mapping=limit)
    assert worker_queue.enqueue_due(["default"]).moved == (corrupt, sound)
    assert {*queue_of(queue_connection).job_ids} == {corrupt, sound}


def test_spoilt_records_hold_up_no_delayed_job(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    chance = random.Random(20261129)
    connection: Any = queue_connection
    (model_id,) = submit(connection, ["a prompt to spoil"])
    record = real_record(connection, model_id)
    for number in range(10 * len(MUTATIONS)):
        MUTATIONS[number % len(MUTATIONS)](chance, connection, b"spoilt-%d" % number, record)
    while (job_id := connection.lpop("rq:queue:default")) is not None:
        connection.zadd("rq:scheduled:default", {job_id: 1.0})
    assert connection.zcard("rq:scheduled:default") > 5 * len(MUTATIONS)
    assert model_id in worker_queue.enqueue_due(["default"]).moved
    assert connection.zcard("rq:scheduled:default") == 0
    claimed = worker_queue.claim(["default"], 10_000)
    assert model_id in {claim.job_id for claim in claimed.claims}
    assert len(claimed.dead) > len(MUTATIONS)


def test_a_delayed_job_is_cancelled_at_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, delay: Delay
) -> None:
    cancelled, other = delay(-1), delay(-1)
    assert worker_queue.cancel(cancelled) == Cancellation(CancelOutcome.CANCELLED_WAITING, "scheduled")
    assert worker_queue.enqueue_due(["default"]).moved == (other,)
    assert fetch(queue_connection, cancelled).is_canceled
    assert queue_of(queue_connection).canceled_job_registry.get_job_ids() == [cancelled]


def test_delayed_jobs_are_counted(worker_queue: JobQueue, delay: Delay) -> None:
    delay(60)
    delay(60, "bulk")
    delay(60, "bulk")
    counts = worker_queue.counts(["default", "bulk"])
    assert [(count.waiting, count.delayed) for count in counts.values()] == [(0, 1), (0, 2)]


def test_a_lost_reply_moves_nothing_twice(lossy_proxy: LossyProxy, embedded_data_dir: Path) -> None:
    with closing(connect(lossy_proxy.url, Path())) as connection, closing(connect(None, embedded_data_dir)) as direct:
        job = queue_of(direct).enqueue_in(timedelta(seconds=-1), "pagemill.prompt", {"prompt": "x"})
        digest: Any = direct.script_load(load_script("enqueue_due"))
        lossy_proxy.lose_replies_to.append(digest if isinstance(digest, bytes) else digest.encode())
        queue = JobQueue(connection, "worker-1", lease_seconds=60.0)
        with pytest.raises(ServiceUnavailable):
            queue.enqueue_due(["default"])
        assert queue.enqueue_due(["default"]) == DueJobs((), None)
        assert queue_of(direct).job_ids == [job.id]
