"""Putting held jobs off: the verb behind retries, on the embedded server and on a real Redis."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from rq import Queue, RateLimit, Retry
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry, StartedJobRegistry
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from worker import records
from worker.backoff import RetryPolicy
from worker.queue.access import Cancellation, CancelOutcome
from worker.queue.job_queue import Acknowledgement, Delay, DelayedClaims, JobQueue
from worker.records import AttemptState, Claim

Enqueue = Callable[..., list[str]]

SIMPLY_DELAYED = DelayedClaims(frozenset(), frozenset())


def delayed(claim: Claim, seconds: float, retry_count: int = 1) -> Delay:
    return Delay(claim, records.Retry(datetime.now(UTC) + timedelta(seconds=seconds), retry_count))


def fetch(connection: redis.Redis, job_id: str) -> Job:
    return Job.fetch(job_id, connection=connection, serializer="json")


def test_a_delayed_job_waits_where_rq_keeps_scheduled_ones(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    delay = delayed(claim, 60)
    assert worker_queue.delay([delay]) == SIMPLY_DELAYED
    assert fetch(queue_connection, job_id).get_status() == JobStatus.SCHEDULED
    registry = ScheduledJobRegistry("default", connection=queue_connection)
    assert registry.get_scheduled_time(job_id) == delay.retry.due_at
    assert StartedJobRegistry("default", connection=queue_connection).get_job_ids(cleanup=False) == []
    assert queue_connection.zcard("pagemill:leases:default") == 0
    assert queue_connection.keys("rq:execution:*") == []
    assert worker_queue.claim(["default"], 1).claims == ()
    assert worker_queue.enqueue_due(["default"]).next_in_seconds == pytest.approx(60, abs=5)


def test_a_repeated_call_finds_its_work_done(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    delay = delayed(claim, 60)
    for _ in range(2):
        assert worker_queue.delay([delay]) == SIMPLY_DELAYED
    assert queue_connection.zrange("rq:scheduled:default", 0, -1) == [job_id.encode()]
    queue_connection.zadd("rq:scheduled:default", {job_id: 1.0})
    worker_queue.enqueue_due(["default"])
    (again,) = worker_queue.claim(["default"], 1).claims
    assert worker_queue.delay([delay]) == SIMPLY_DELAYED  # and once more, when the job has gone on
    assert worker_queue.extend([again]) == frozenset()


@pytest.mark.parametrize("gone", ["cancelled", "deleted", "claimed again"])
def test_a_lease_that_is_gone_delays_nothing(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue, gone: str
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    if gone == "cancelled":
        fetch(queue_connection, job_id).cancel()
    elif gone == "deleted":
        queue_connection.delete(Job.key_for(job_id))
    else:
        worker_queue.requeue([claim])
        (successor,) = other_queue.claim(["default"], 1).claims
    assert worker_queue.delay([delayed(claim, 60)]).gone == {claim.execution_id}
    assert queue_connection.zcard("rq:scheduled:default") == 0
    if gone == "claimed again":
        assert other_queue.extend([successor]) == frozenset()


def test_a_retry_goes_to_the_head_of_its_queue_and_keeps_its_place_in_time(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    first, *others = enqueue(3)
    (claim,) = worker_queue.claim(["default"], 1).claims
    worker_queue.delay([delayed(claim, -1)])
    assert [claim.job_id for claim in worker_queue.claim(["default"], 3).claims] == [first, *others]
    assert fetch(queue_connection, first).enqueued_at == claim.enqueued_at


def test_rqs_own_count_goes_down_as_ours_goes_up(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    job = target.enqueue("pagemill.prompt", {"prompt": "x"}, retry=Retry(max=3, interval=[5, 7]))
    for retry_count in (1, 1, 3):  # a hand-back after an infrastructure error spends none; a lost call, two at once
        (claim,) = worker_queue.claim(["default"], 1).claims
        assert claim.retries == RetryPolicy(3, (5, 7))
        worker_queue.delay([delayed(claim, -1, retry_count)])
        assert fetch(queue_connection, job.id).retries_left == 3 - retry_count


@pytest.mark.parametrize(
    ("payload", "retry", "expected"),
    [
        ({}, None, 2),
        ({"max_retries": 0}, None, 0),
        ({"max_retries": 7}, Retry(max=1), 7),
        ({}, Retry(max=1), 1),
    ],
)
def test_where_the_number_of_retries_comes_from(
    queue_connection: redis.Redis,
    worker_queue: JobQueue,
    payload: dict[str, object],
    retry: Retry | None,
    expected: int,
) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    target.enqueue("pagemill.prompt", {"prompt": "x", **payload}, retry=retry)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.retries.max_retries == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("retries_left", value) for value in ("-1", "x", "1e9", "", "9" * 40)),
        *(("retry_intervals", value) for value in ("x", "{}", "[-1]", "[true]", '["1"]', "[NaN]", "[" * 5000)),
        ("pagemill_retries", "many"),
    ],
)
def test_corrupt_counts_are_dead_lettered(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue, name: str, value: str
) -> None:
    (job_id,) = enqueue(1)
    queue_connection.hset(Job.key_for(job_id), name, value)
    (dead,) = worker_queue.claim(["default"], 1).dead
    assert dead.error_code == "corrupt_record"
    assert dead.error_message.startswith(f"{name}: ")


def test_a_job_that_is_to_be_cancelled_does_not_wait(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    to_cancel, other = enqueue(2)
    claims = worker_queue.claim(["default"], 2).claims
    assert worker_queue.cancel(to_cancel).outcome is CancelOutcome.CANCELLING
    for _ in range(2):  # the second is a repetition after a lost reply
        answer = worker_queue.delay([delayed(claim, 600) for claim in claims])
        assert answer == DelayedClaims(frozenset(), frozenset({to_cancel}))
    assert fetch(queue_connection, to_cancel).is_canceled
    assert worker_queue.cancelling() == frozenset()
    assert queue_connection.zrange("rq:scheduled:default", 0, -1) == [other.encode()]


def test_rqs_own_scheduler_brings_a_job_back_with_its_count(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    worker_queue.delay([delayed(claim, 600, retry_count=2)])
    queue_connection.zadd("rq:scheduled:default", {job_id: 1.0})
    scheduler = RQScheduler(["default"], connection=queue_connection, serializer=JSONSerializer)
    scheduler.prepare_registries(["default"])
    scheduler.enqueue_scheduled_jobs()
    (again,) = worker_queue.claim(["default"], 1).claims
    assert (again.job_id, again.job) == (job_id, claim.job)
    assert again.epoch > claim.epoch
    assert queue_connection.hget(Job.key_for(job_id), "pagemill_retries") == b"2"


def test_a_job_in_back_off_is_cancelled_at_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    worker_queue.delay([delayed(claim, 600)])
    assert worker_queue.cancel(job_id) == Cancellation(CancelOutcome.CANCELLED_WAITING, "scheduled")
    assert fetch(queue_connection, job_id).is_canceled
    assert queue_connection.zcard("rq:scheduled:default") == 0


def test_a_back_off_holds_no_slot_of_a_rate_limit(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target, limit = Queue("default", connection=queue_connection, serializer="json"), RateLimit("one at a time", 1)
    first, second = (target.enqueue("pagemill.prompt", {"prompt": "x"}, rate_limit=limit) for _ in range(2))
    (claim,) = worker_queue.claim(["default"], 8).claims
    assert claim.job_id == first.id
    worker_queue.delay([delayed(claim, 600)])
    (claim,) = worker_queue.claim(["default"], 8).claims
    assert claim.job_id == second.id
    queue_connection.zadd("rq:scheduled:default", {first.id: 1.0})
    worker_queue.enqueue_due(["default"])
    assert worker_queue.claim(["default"], 8).claims == ()  # its slot is taken
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE)])
    assert [claim.job_id for claim in worker_queue.claim(["default"], 8).claims] == [first.id]


def test_rqs_time_to_live_begins_anew(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    job = target.enqueue("pagemill.prompt", {"prompt": "x"}, ttl=500)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert queue_connection.ttl(job.key) == -1
    worker_queue.delay([delayed(claim, 60)])
    assert 490 < queue_connection.ttl(job.key) <= 500
