"""Claiming, leases and their ends, on the embedded server and on a real Redis."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.suspension import resume, suspend
from rq.utils import utcformat

from tests.queue.suspicion import claim_suspects, suspect_groups
from worker.errors import ServiceUnavailable
from worker.queue.connection import connect
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import AttemptState, Claim

Enqueue = Callable[..., list[str]]


def job_ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.job_id for claim in claims]


def expire_leases(connection: redis.Redis, *claims: Claim) -> None:
    for claim in claims:
        connection.zadd(f"pagemill:leases:{claim.queue}", {f"{claim.job_id}:{claim.execution_id}": 1.0}, xx=True)


def waiting(connection: redis.Redis, queue: str = "default") -> list[str]:
    return Queue(queue, connection=connection).job_ids


def test_claims_come_first_in_first_out_and_first_queue_first(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    low, high = enqueue(3, "low"), enqueue(3, "high")
    first = worker_queue.claim(["high", "low"], 4)
    second = worker_queue.claim(["high", "low"], 4)
    assert job_ids(first.claims) == [*high, low[0]]
    assert job_ids(second.claims) == low[1:]
    assert worker_queue.claim(["high", "low"], 4).claims == ()


def test_a_limit_of_zero_claims_nothing(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    enqueue(1)
    assert worker_queue.claim(["default"], 0).claims == ()
    assert worker_queue.depth(["default"]) == {"default": 1}


def test_a_claim_holds_the_job_as_it_was_enqueued(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    before = time.time()
    enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.job.prompt == "question 0"
    assert claim.payload_json == '{"prompt": "question 0"}'
    assert claim.queue == "default"
    assert before - 1 <= claim.enqueued_at.timestamp() <= claim.claimed_at.timestamp() + 1
    assert claim.epoch == pytest.approx(claim.claimed_at.timestamp() * 1e6, abs=10)


def test_two_threads_claim_each_of_200_jobs_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueued = enqueue(200)
    claimed: list[str] = []

    def drain(queue: JobQueue) -> None:
        while claims := queue.claim(["default"], 3).claims:
            claimed.extend(job_ids(claims))

    threads = [threading.Thread(target=drain, args=(queue,)) for queue in (worker_queue, other_queue)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(claimed) == Counter(enqueued)


def test_the_same_id_delivered_three_times_is_claimed_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    queue_connection.rpush("rq:queue:default", job_id, job_id)
    queue_connection.rpush("rq:queue:other", job_id)
    claims = worker_queue.claim(["default", "other"], 8).claims
    assert job_ids(claims) == [job_id]
    worker_queue.acknowledge([Acknowledgement(claims[0], AttemptState.DONE, {"text": "x"})])
    queue_connection.rpush("rq:queue:default", job_id)
    assert worker_queue.claim(["default"], 8).claims == ()
    assert worker_queue.depth(["default", "other"]) == {"default": 0, "other": 0}


def test_an_id_without_a_record_is_dropped(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    gone, kept = enqueue(2)
    queue_connection.delete(f"rq:job:{gone}")
    claimed = worker_queue.claim(["default"], 8)
    assert job_ids(claimed.claims) == [kept]
    assert claimed.dead == ()


def test_nothing_is_claimed_while_rq_is_suspended(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(1)
    suspend(queue_connection)
    assert worker_queue.claim(["default"], 1).claims == ()
    resume(queue_connection)
    assert len(worker_queue.claim(["default"], 1).claims) == 1


def test_a_claimed_job_does_not_expire_and_a_requeued_one_does_again(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    job = Queue("default", connection=queue_connection, serializer="json").enqueue(
        "pagemill.prompt", {"prompt": "x"}, ttl=100
    )
    claims = worker_queue.claim(["default"], 1).claims
    assert queue_connection.ttl(job.key) == -1
    worker_queue.requeue(claims)
    assert 0 < queue_connection.ttl(job.key) <= 100


def test_jobs_of_a_lost_claim_come_back_once(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    enqueued = enqueue(4)
    known = worker_queue.claim(["default"], 1).claims
    lost = worker_queue.claim(["default"], 3).claims
    recovered = worker_queue.recover([claim.execution_id for claim in known]).claims
    assert [replace(claim, age_seconds=0.0) for claim in recovered] == list(lost)
    assert job_ids(recovered) == enqueued[1:]
    assert worker_queue.recover([claim.execution_id for claim in (*known, *lost)]).claims == ()


def test_a_recovered_claim_tells_its_age(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.age_seconds == 0.0
    long_ago = claim.claimed_at - timedelta(seconds=100)
    queue_connection.hset(f"rq:job:{job_id}", "started_at", utcformat(long_ago))
    (recovered,) = worker_queue.recover([]).claims
    assert recovered.claimed_at == long_ago
    assert recovered.age_seconds == pytest.approx(100, abs=5)


def test_a_claim_whose_reply_was_lost_is_recovered(lossy_proxy: Any, tmp_path: Path) -> None:
    connection = connect(lossy_proxy.url, tmp_path)
    queue = JobQueue(connection, "worker-1", 60.0)
    target = Queue("default", connection=connection, serializer="json")
    enqueued = [target.enqueue("pagemill.prompt", {"prompt": "x"}).id for _ in range(3)]
    assert queue.claim(["default"], 1).claims  # the script is loaded now: the next call is one command
    lossy_proxy.lose_replies_to.append(b"EVALSHA")
    with pytest.raises(ServiceUnavailable):
        queue.claim(["default"], 1)
    again = queue.claim(["default"], 1).claims
    assert job_ids(again) == enqueued[2:]
    assert sorted(job_ids(queue.recover([]).claims)) == sorted(enqueued)
    connection.close()


def test_a_worker_does_not_recover_what_others_hold(
    worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(2)
    worker_queue.claim(["default"], 1)
    assert other_queue.recover([]).claims == ()


def test_requeued_jobs_return_to_the_head_in_their_order(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueued = enqueue(6)
    claims = (*worker_queue.claim(["default"], 2).claims, *worker_queue.claim(["default"], 2).claims)
    assert worker_queue.requeue([claims[2], claims[0], claims[3], claims[1]]) == frozenset()
    assert waiting(queue_connection) == enqueued
    again = worker_queue.claim(["default"], 6).claims
    assert job_ids(again) == enqueued
    assert all(new.epoch > old.epoch for new, old in zip(again, claims, strict=False))
    assert all(new.enqueued_at == old.enqueued_at for new, old in zip(again, claims, strict=False))


def test_a_repeated_requeue_finds_its_work_done(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueued = enqueue(2)
    claims = worker_queue.claim(["default"], 2).claims
    worker_queue.requeue(claims)
    assert worker_queue.requeue(claims) == {claim.execution_id for claim in claims}
    assert waiting(queue_connection) == enqueued


def test_the_epoch_rises_although_the_clock_went_back(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    tomorrow = int((time.time() + 86_400) * 1e6)
    queue_connection.hset(f"rq:job:{job_id}", "pagemill_epoch", tomorrow)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.epoch == tomorrow + 1


@pytest.mark.parametrize("garbage", ["banana", "nan", "inf", "-5", "1e300", ""])
def test_a_garbage_epoch_counts_as_none(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue, garbage: str
) -> None:
    (job_id,) = enqueue(1)
    queue_connection.hset(f"rq:job:{job_id}", "pagemill_epoch", garbage)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.epoch == pytest.approx(time.time() * 1e6, abs=60e6)


def test_jobs_whose_leases_ran_out_are_swept_once_in_their_order(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueued = enqueue(5)
    claims = worker_queue.claim(["default"], 4).claims
    expire_leases(queue_connection, claims[3], claims[1], claims[0])
    assert other_queue.sweep(["default"]) == (enqueued[0], enqueued[1], enqueued[3])
    assert waiting(queue_connection) == [enqueued[4]]
    assert suspect_groups(queue_connection) == [[enqueued[0]], [enqueued[1], enqueued[3]]]
    assert queue_connection.scard("rq:worker:worker-1:executions") == 1
    assert worker_queue.extend(claims) == {claims[place].execution_id for place in (0, 1, 3)}
    assert other_queue.sweep(["default"]) == ()


def test_a_lease_ends_by_itself(queue_connection: redis.Redis, enqueue: Enqueue) -> None:
    enqueued = enqueue(1)
    dying = JobQueue(queue_connection, "dying", lease_seconds=0.05)
    dying.claim(["default"], 1)
    deadline = time.monotonic() + 10
    while not (swept := dying.sweep(["default"])) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(swept) == enqueued


def test_an_extended_lease_is_not_swept(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(1)
    claims = worker_queue.claim(["default"], 1).claims
    expire_leases(queue_connection, *claims)
    assert worker_queue.extend(claims) == frozenset()
    assert worker_queue.sweep(["default"]) == ()


def test_a_swept_claim_can_do_no_harm(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(1)
    (stale,) = worker_queue.claim(["default"], 1).claims
    expire_leases(queue_connection, stale)
    other_queue.sweep(["default"])
    (current,) = claim_suspects(queue_connection, other_queue).claims
    gone = frozenset({stale.execution_id})
    assert worker_queue.extend([stale]) == gone
    assert worker_queue.requeue([stale]) == gone
    assert worker_queue.acknowledge([Acknowledgement(stale, AttemptState.DONE, {"text": "old"})]) == gone
    assert other_queue.extend([current]) == frozenset()
    assert other_queue.acknowledge([Acknowledgement(current, AttemptState.DONE, {"text": "new"})]) == frozenset()
    assert current.epoch > stale.epoch


def test_claims_of_others_and_of_stock_workers_are_left_alone(
    queue_connection: redis.Redis, worker_queue: JobQueue
) -> None:
    queue_connection.zadd("rq:wip:default", {"some-job:some-execution": 1.0})
    assert worker_queue.sweep(["default"]) == ()
    assert queue_connection.zcard("rq:wip:default") == 1
