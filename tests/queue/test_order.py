"""Which queue is served next: the first one with jobs, the others in their turn, a paused one never."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker.client import submit
from worker.queue.job_queue import JobQueue
from worker.queue.policy import QueuePolicy

Enqueue = Callable[..., list[str]]
QUEUES = ("first", "second", "third")


def served(queue: JobQueue, limit: int, queues: tuple[str, ...] = QUEUES) -> list[str]:
    """Claim up to `limit` jobs; return the queues they came from."""
    return [claim.queue for claim in queue.claim(queues, limit).claims]


@pytest.mark.parametrize("at_once", [1, 3, 24])
def test_one_claim_in_eight_goes_down_the_list(worker_queue: JobQueue, enqueue: Enqueue, at_once: int) -> None:
    for name in QUEUES:
        enqueue(30, name)
    order = [name for _ in range(24 // at_once) for name in served(worker_queue, at_once)]
    assert order == [*["first"] * 7, "second", *["first"] * 7, "third", *["first"] * 7, "second"]


def test_workers_with_the_same_queues_share_their_turns(
    worker_queue: JobQueue, other_queue: JobQueue, enqueue: Enqueue
) -> None:
    for name in QUEUES:
        enqueue(10, name)
    assert served(worker_queue, 4) + served(other_queue, 4) == [*["first"] * 7, "second"]
    assert served(other_queue, 1, ("first", "second")) == ["first"]


def test_a_share_of_zero_is_strict_order(queue_connection: redis.Redis, enqueue: Enqueue) -> None:
    enqueue(20, "first")
    enqueue(5, "second")
    assert served(JobQueue(queue_connection, "w", 60.0, lower_queue_share=0.0), 22) == [
        *["first"] * 20,
        *["second"] * 2,
    ]


def test_nobody_is_passed_over_where_only_one_queue_waits(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(20, "second")
    assert served(worker_queue, 20) == ["second"] * 20
    assert queue_connection.keys("pagemill:*") == [b"pagemill:leases:second"]


def test_ids_without_records_use_up_no_turn(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(8, "first")
    queue_connection.rpush("rq:queue:second", *(f"gone-{number}" for number in range(50)))
    enqueue(1, "third")
    assert served(worker_queue, 8) == [*["first"] * 7, "third"]


def test_a_paused_queue_is_passed_by_until_it_is_resumed(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    policy = QueuePolicy(queue_connection)
    policy.pause(["first", "third"])
    policy.pause(["first"])
    for name in QUEUES:
        enqueue(2, name)
    assert policy.paused() == {"first", "third"}
    assert served(worker_queue, 10) == ["second"] * 2
    policy.resume(["first"])
    assert served(worker_queue, 10) == ["first"] * 2
    policy.resume(["first", "third"])
    assert (policy.paused(), served(worker_queue, 10)) == (frozenset(), ["third"] * 2)


def test_running_jobs_of_a_paused_queue_go_on(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(2)
    first, second = worker_queue.claim(["default"], 2).claims
    QueuePolicy(queue_connection).pause(["default"])
    assert worker_queue.extend([first, second]) == frozenset()
    assert worker_queue.requeue([second]) == frozenset()
    assert worker_queue.claim(["default"], 2).claims == ()
    assert worker_queue.depth(["default"]) == {"default": 1}


@dataclass
class Waits:
    """Counts, for each queue, the claims since it was last served or empty."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    longest: int = 0

    def note(self, served: str, waiting: dict[str, int]) -> None:
        for name in QUEUES:
            self.counts[name] = 0 if name == served or not waiting[name] else self.counts[name] + 1
        self.longest = max(self.longest, *self.counts.values())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    share=st.sampled_from([0.5, 0.25, 0.125]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(QUEUES), st.integers(1, 12)),
            st.tuples(st.just("claim"), st.integers(1, 9)),
        ),
        max_size=40,
    ),
)
def test_no_queue_with_jobs_waits_for_ever(
    queue_connection: redis.Redis, share: float, steps: list[tuple[str, int]]
) -> None:
    """Whatever comes in whatever order, a queue with jobs is served within queues / share claims."""
    queue_connection.flushdb()
    workers = [JobQueue(queue_connection, name, 600.0, lower_queue_share=share) for name in ("one", "two")]
    waiting, waits = dict.fromkeys(QUEUES, 0), Waits()
    for number, (what, count) in enumerate([*steps, ("claim", 400)]):
        if what == "claim":
            order = served(workers[number % 2], count)
            assert len(order) == min(count, sum(waiting.values()))
            for name in order:
                waiting[name] -= 1
                waits.note(name, waiting)
        else:
            submit(queue_connection, ["x"] * count, queue=what)
            waiting[what] += count
    assert waits.longest < len(QUEUES) / share
