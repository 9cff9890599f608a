"""Cancelling, counting, and live tokens."""

from collections.abc import Callable

import pytest
import redis
from rq import Queue
from rq.job import Job, JobStatus

from worker.queue.access import Cancellation, CancelOutcome, QueueAccess, TokenDelta
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import AttemptState

Enqueue = Callable[..., list[str]]


def test_a_waiting_job_is_cancelled_at_once(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    first, second = enqueue(2)
    assert QueueAccess(queue_connection).cancel(first) == Cancellation(CancelOutcome.CANCELLED_WAITING, "queued")
    assert [claim.job_id for claim in worker_queue.claim(["default"], 8).claims] == [second]
    assert Job.fetch(first, connection=queue_connection, serializer="json").is_canceled
    assert Queue("default", connection=queue_connection).canceled_job_registry.get_job_ids() == [first]


def test_a_running_job_is_cancelled_by_its_worker(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    (job_id,) = enqueue(1)
    claims = worker_queue.claim(["default"], 1).claims
    assert worker_queue.cancel(job_id).outcome is CancelOutcome.CANCELLING
    assert worker_queue.cancelling() == {job_id}
    assert worker_queue.extend(claims) == frozenset()
    worker_queue.forget_cancelling([job_id])
    worker_queue.forget_cancelling([])
    assert worker_queue.cancelling() == frozenset()


@pytest.mark.parametrize("state", [AttemptState.DONE, AttemptState.FAILED, AttemptState.CANCELLED])
def test_an_ended_job_cannot_be_cancelled(worker_queue: JobQueue, enqueue: Enqueue, state: AttemptState) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    worker_queue.acknowledge([Acknowledgement(claim, state)])
    status = {"done": "finished", "failed": "failed", "cancelled": "canceled"}[state]
    assert worker_queue.cancel(job_id) == Cancellation(CancelOutcome.NOT_CANCELLABLE, status)


@pytest.mark.parametrize("job_id", ["nobody", "", "*", "a:b", "x" * 1000])
def test_an_unknown_job_is_unknown(worker_queue: JobQueue, enqueue: Enqueue, job_id: str) -> None:
    enqueue(1)
    assert worker_queue.cancel(job_id) == Cancellation(CancelOutcome.UNKNOWN, None)
    assert worker_queue.depth(["default"]) == {"default": 1}


def test_a_deferred_job_is_cancelled_through_rq(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    parent = target.enqueue("pagemill.prompt", {"prompt": "first"})
    child = target.enqueue("pagemill.prompt", {"prompt": "second"}, depends_on=parent)
    assert child.get_status() == JobStatus.DEFERRED
    assert worker_queue.cancel(child.id).outcome is CancelOutcome.CANCELLED_WAITING
    (claim,) = worker_queue.claim(["default"], 8).claims
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE)])
    assert worker_queue.claim(["default"], 8).claims == ()


def test_counts_of_several_queues(worker_queue: JobQueue, enqueue: Enqueue) -> None:
    enqueue(3, "one")
    enqueue(1, "two")
    worker_queue.claim(["one"], 1)
    assert worker_queue.depth(["one", "two", "none"]) == {"one": 2, "two": 1, "none": 0}
    counts = worker_queue.counts(["one", "two"])
    assert (counts["one"].waiting, counts["one"].running) == (2, 1)
    assert (counts["two"].waiting, counts["two"].running) == (1, 0)


def test_watching_ends_by_itself(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    worker_queue.watch("job-1", 60)
    worker_queue.watch("job-2", -1)
    assert worker_queue.watched() == {"job-1"}
    assert queue_connection.zcard("pagemill:watched") == 1


def test_tokens_are_read_in_their_order(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    worker_queue.publish_tokens({"a": [TokenDelta("Grüß ")], "b": [TokenDelta("x")]})
    worker_queue.publish_tokens({"a": [TokenDelta("Gott", final=True)]})
    events = worker_queue.read_tokens("a")
    assert [event.delta for event in events] == [TokenDelta("Grüß "), TokenDelta("Gott", final=True)]
    assert worker_queue.read_tokens("a", events[0].event_id) == events[1:]
    assert worker_queue.read_tokens("a", events[1].event_id, block_ms=10) == ()
    assert 0 < queue_connection.ttl("pagemill:tokens:a") <= 600


def test_tokens_of_several_outputs(worker_queue: JobQueue) -> None:
    deltas = [TokenDelta("a", position=0), TokenDelta("x", position=3, index=1), TokenDelta("", final=True, index=15)]
    deltas.append(TokenDelta("", position=1, finish_reason="stop_string"))
    worker_queue.publish_tokens({"a": deltas})
    assert [event.delta for event in worker_queue.read_tokens("a")] == deltas


def test_an_end_that_no_output_has_is_none(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    queue_connection.xadd("pagemill:tokens:a", {"text": "forged", "finish_reason": "cancelled"})
    assert [event.delta for event in worker_queue.read_tokens("a")] == [TokenDelta("forged")]


@pytest.mark.parametrize("index", ["16", "-1", "1" * 20, "x", ""])
def test_tokens_of_outputs_that_no_job_has_are_none(
    queue_connection: redis.Redis, worker_queue: JobQueue, index: str
) -> None:
    queue_connection.xadd("pagemill:tokens:a", {"text": "forged", "index": index, "final": "1"})
    assert [event.delta for event in worker_queue.read_tokens("a")] == [TokenDelta("", final=True)]
