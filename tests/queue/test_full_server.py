"""A full Redis: producers are told, the worker drains it unaided."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from worker.client import Client, enqueue, prepare, submit
from worker.errors import ExitCode, TryLater
from worker.queue.connection import connect
from worker.queue.job_queue import Acknowledgement, Delay, JobQueue
from worker.records import AttemptState, Retry

QUEUE = "default"


@pytest.fixture(params=["embedded", "redis-server"])
def full_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[redis.Redis]:
    """A server of its own with 200 waiting jobs, one of them dead, and no memory left."""
    if request.param == "redis-server":
        monkeypatch.setattr("worker.queue.embedded.CARRIER_PACKAGE", "no_such_package")
    with closing(connect(None, tmp_path)) as connection:
        ids = submit(connection, [f"{number} " + "word " * 200 for number in range(200)])
        connection.hset(f"rq:job:{ids[7]}", "data", b"?")
        connection.config_set("maxmemory", connection.info("memory")["used_memory"] // 2)
        yield connection


def test_producers_are_told_and_nothing_is_half_enqueued(full_server: redis.Redis) -> None:
    with pytest.raises(TryLater, match="is full") as caught:
        submit(full_server, ["one", "two"])
    assert caught.value.exit_code is ExitCode.TRY_LATER
    assert "0 jobs are in the queue" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert full_server.llen(f"rq:queue:{QUEUE}") == 200


def test_the_worker_drains_it(full_server: redis.Redis) -> None:
    queue = JobQueue(full_server, "worker-1", lease_seconds=60.0)
    (again,) = queue.claim([QUEUE], 1).claims
    assert queue.requeue([again]) == frozenset()
    (again,) = queue.claim([QUEUE], 1).claims
    assert queue.delay([Delay(again, Retry(datetime.now(UTC) + timedelta(seconds=0.1), 1))]).gone == frozenset()
    while not (due := queue.enqueue_due([QUEUE])).moved:
        assert due.next_in_seconds is not None
    assert due.moved == (again.job_id,)
    done = dead = 0
    while queue.depth([QUEUE])[QUEUE]:
        claimed = queue.claim([QUEUE], 64)
        assert queue.extend(claimed.claims) == frozenset()
        ends = [Acknowledgement(claim, AttemptState.DONE, {"text": "x" * 100}) for claim in claimed.claims]
        assert queue.acknowledge(ends) == frozenset()
        done += len(ends)
        dead += queue.dead_letter(claimed.dead)
    assert (done, dead) == (199, 1)
    assert queue.sweep([QUEUE]) == ()


def test_a_producer_whose_later_jobs_do_not_fit_knows_which_did(tmp_path: Path) -> None:
    with Client(data_dir=tmp_path) as client:
        jobs = prepare(f"{number}" for number in range(1000))
        chunks = enqueue(client.connection, jobs)
        first = next(chunks)
        client.connection.config_set("maxmemory", 1)
        with pytest.raises(TryLater, match="500 jobs are in the queue"):
            next(chunks)
        assert client.connection.llen(f"rq:queue:{QUEUE}") == len(first) == 500
