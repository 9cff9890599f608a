"""Locating jobs in Redis, on both servers: where they are, and what has got lost between its structures."""

from datetime import timedelta

import redis
from rq import Queue

from tests.queue.conftest import Enqueue
from worker.client import enqueue as enqueue_jobs
from worker.client import prepare, submit
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.places import LIST_PAGE, Place, QueuePlaces
from worker.queue.scripts import QueueScripts
from worker.records import AttemptState
from worker.running.reconcile_chore import MARKER_KEY


def test_every_kind_of_place(queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue) -> None:
    done, cancelled, held, waiting, unlisted, started, foreign = enqueue(7)
    claims = {claim.job_id: claim for claim in worker_queue.claim(["default"], 3).claims}
    worker_queue.acknowledge([Acknowledgement(claims[done], AttemptState.DONE, {"text": ""})])
    worker_queue.acknowledge([Acknowledgement(claims[cancelled], AttemptState.CANCELLED)])
    queue_connection.lrem("rq:queue:default", 0, unlisted)
    queue_connection.hset(f"rq:job:{started}", "status", "started")
    queue_connection.delete(f"rq:job:{foreign}")
    queue_connection.set(f"rq:job:{foreign}", "no hash")
    delayed = Queue("default", connection=queue_connection, serializer="json").enqueue_in(
        timedelta(hours=1), "pagemill.prompt", {"prompt": "x"}
    )
    places = {
        done: Place.ENDED,
        cancelled: Place.CANCELLED,
        held: Place.HELD,
        waiting: Place.WAITING,
        unlisted: Place.ADRIFT,
        started: Place.ADRIFT,
        foreign: Place.WAITING,
        delayed.id: Place.WAITING,
        "unheard-of": Place.ABSENT,
    }
    assert dict(zip(places, QueuePlaces(queue_connection).locate(list(places)), strict=True)) == places


def test_lists_longer_than_a_page_are_known_whole(queue_connection: redis.Redis) -> None:
    ids = submit(queue_connection, ["x"] * (2 * LIST_PAGE + 1))
    places = QueuePlaces(queue_connection)
    assert set(places.locate([ids[0], ids[LIST_PAGE], ids[-1]])) == {Place.WAITING}
    queue_connection.ltrim("rq:queue:default", 1, -1)
    assert QueuePlaces(queue_connection).locate([ids[0], ids[1]]) == (Place.ADRIFT, Place.WAITING)


def test_strays_are_found_among_many_records(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    submit(queue_connection, ["x"] * 1500, queue="other")
    stray, held = enqueue(2)
    worker_queue.claim(["default"], 1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert claim.job_id == held
    queue_connection.delete(f"rq:executions:{stray}", "pagemill:leases:default")
    queue_connection.zadd("pagemill:leases:default", {f"{claim.job_id}:{claim.execution_id}": 9e9})
    places = QueuePlaces(queue_connection)
    assert [job_id for page in places.strays() for job_id in page] == [stray]
    assert places.adopt([stray, held]) == 1
    assert places.adopt([stray, held]) == 0, "it is where it should be now"
    assert Queue("default", connection=queue_connection).job_ids == [stray]


def test_a_job_that_is_there_is_not_created_again(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    jobs = prepare(["one"])
    list(enqueue_jobs(queue_connection, jobs))
    (claim,) = worker_queue.claim(["default"], 1).claims
    list(enqueue_jobs(queue_connection, jobs))
    assert worker_queue.extend([claim]) == frozenset()
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {"text": ""})])
    list(enqueue_jobs(queue_connection, jobs))
    assert queue_connection.llen("rq:queue:default") == 0


def test_one_caller_is_told_to_reconcile(queue_connection: redis.Redis) -> None:
    scripts = QueueScripts(queue_connection)
    assert [scripts.call("reconcile_due", [MARKER_KEY, 60]) for _ in range(3)] == [1, 0, 0]
    queue_connection.set(MARKER_KEY, "the run of another server", ex=60)
    assert [scripts.call("reconcile_due", [MARKER_KEY, 60]) for _ in range(2)] == [1, 0]
    assert queue_connection.ttl(MARKER_KEY) > 0
