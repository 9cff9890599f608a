"""RQ's own tools read what the scripts write, and what they do to a job is respected."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import redis
from rq import Queue, RateLimit, Worker
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry

from worker.errors import ConfigurationError
from worker.queue.connection import connect
from worker.queue.embedded import embedded_url
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import AttemptState

Enqueue = Callable[..., list[str]]


def test_rq_sees_running_jobs_and_their_executions(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(2)
    claims = worker_queue.claim(["default"], 2).claims
    registry = StartedJobRegistry("default", connection=queue_connection)
    assert sorted(registry.get_job_and_execution_ids()) == sorted((c.job_id, c.execution_id) for c in claims)
    job = Job.fetch(claims[0].job_id, connection=queue_connection, serializer="json")
    assert job.get_status() == JobStatus.STARTED
    assert job.worker_name == "worker-1"
    (execution,) = job.get_executions()
    assert isinstance(execution, Execution)
    assert (execution.id, execution.worker_name) == (claims[0].execution_id, "worker-1")
    assert execution.created_at == claims[0].claimed_at
    worker = Worker(["default"], connection=queue_connection, name="worker-1", prepare_for_work=False)
    assert {one.id for one in worker.get_current_executions()} == {claim.execution_id for claim in claims}


def test_a_beat_moves_the_executions_heartbeat(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    enqueue(1)
    claims = worker_queue.claim(["default"], 1).claims
    before = Execution.fetch(claims[0].execution_id, claims[0].job_id, queue_connection)
    worker_queue.extend(claims)
    after = Execution.fetch(claims[0].execution_id, claims[0].job_id, queue_connection)
    assert after.last_heartbeat > before.last_heartbeat
    assert after.created_at == before.created_at


def test_rqs_cleaning_of_the_registry_does_not_fail_an_orphan(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    queue_connection.zadd("pagemill:leases:default", {f"{job_id}:{claim.execution_id}": 1.0}, xx=True)
    assert StartedJobRegistry("default", connection=queue_connection).count == 1
    assert worker_queue.sweep(["default"]) == (job_id,)


def test_a_job_cancelled_through_rq_while_it_runs_is_not_ended_again(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    Job.fetch(job_id, connection=queue_connection, serializer="json").cancel()
    assert worker_queue.extend([claim]) == {claim.execution_id}
    assert worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {})]) == {claim.execution_id}
    assert Job.fetch(job_id, connection=queue_connection, serializer="json").is_canceled
    assert worker_queue.depth(["default"]) == {"default": 0}


def test_a_job_deleted_through_rq_while_it_runs_is_not_resurrected(
    queue_connection: redis.Redis, worker_queue: JobQueue, enqueue: Enqueue
) -> None:
    (job_id,) = enqueue(1)
    (claim,) = worker_queue.claim(["default"], 1).claims
    Job.fetch(job_id, connection=queue_connection, serializer="json").delete()
    assert worker_queue.extend([claim]) == {claim.execution_id}
    assert worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {})]) == {claim.execution_id}
    assert worker_queue.requeue([claim]) == {claim.execution_id}
    assert worker_queue.sweep(["default"]) == ()
    assert sorted(queue_connection.keys()) == [b"rq:queues"]


def test_a_rate_limits_slot_is_freed(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    limit = RateLimit("tenant", 1)
    first, second = (target.enqueue("pagemill.prompt", {"prompt": "x"}, rate_limit=limit) for _ in range(2))
    (claim,) = worker_queue.claim(["default"], 8).claims
    assert claim.job_id == first.id
    worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {})])
    assert [claim.job_id for claim in worker_queue.claim(["default"], 8).claims] == [second.id]


def test_a_corrupt_dependent_does_not_undo_an_end(queue_connection: redis.Redis, worker_queue: JobQueue) -> None:
    target = Queue("default", connection=queue_connection, serializer="json")
    parent = target.enqueue("pagemill.prompt", {"prompt": "x"})
    child = target.enqueue("pagemill.prompt", {"prompt": "x"}, depends_on=parent)
    queue_connection.hset(child.key, "status", "banana")
    (claim,) = worker_queue.claim(["default"], 1).claims
    assert worker_queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {})]) == frozenset()
    assert parent.is_finished


def test_a_server_too_old_for_the_scripts_is_named(
    queue_connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.queue.scripts.load_script", lambda _: "?")  # as old servers see the first line
    with pytest.raises(ConfigurationError, match=r"Redis 7\.0"):
        JobQueue(queue_connection, "worker-1", 60.0).claim(["default"], 1)


def test_rq_info_reads_the_embedded_queue(embedded_data_dir: Path) -> None:
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        target = Queue("default", connection=connection, serializer="json")
        for _ in range(3):
            target.enqueue("pagemill.prompt", {"prompt": "x"})
        JobQueue(connection, "worker-1", 60.0).claim(["default"], 1)
        command = [sys.executable, "-m", "rq.cli", "info", "--raw", "--url", embedded_url(embedded_data_dir)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        assert "queue default 2" in output
        connection.flushdb()
