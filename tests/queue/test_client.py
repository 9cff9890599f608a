"""The producer's client: what it writes is what RQ writes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from rq.job import Job

from worker.client import CHUNK_JOBS, Client, JobEnd, ends, enqueue, prepare, submit
from worker.errors import ConfigurationError, InvalidJob, TryLater
from worker.jobs import PromptJob
from worker.queue.connection import connect
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.records import AttemptState, JobState
from worker.sql.database import open_database
from worker.sql.store import JobStore


def test_a_submitted_job_is_what_rq_enqueues(queue_connection: redis.Redis) -> None:
    payload = {"schema_version": 1, "prompt": "Why?", "max_tokens": 8}
    (ours,) = submit(queue_connection, [payload])
    target = Queue("default", connection=queue_connection, serializer="json")
    theirs = target.enqueue("pagemill.prompt", payload, job_timeout=-1, result_ttl=86_400).id
    mine, rqs = (queue_connection.hgetall(f"rq:job:{job_id}") for job_id in (ours, theirs))
    dates = {b"created_at", b"enqueued_at"}
    assert mine.pop(b"pagemill_tenant") == b"default"
    assert {name: mine[name] for name in mine.keys() - dates} == {name: rqs[name] for name in rqs.keys() - dates}
    assert mine.keys() == rqs.keys()
    job = Job.fetch(ours, connection=queue_connection, serializer="json")
    assert (job.func_name, job.args, job.kwargs) == ("pagemill.prompt", [payload], {})
    assert job.created_at is not None
    assert target.job_ids == [ours, theirs]
    assert [queue.name for queue in Queue.all(queue_connection)] == ["default"]


def test_more_jobs_than_one_transaction_holds_keep_their_order(queue_connection: redis.Redis) -> None:
    jobs = prepare(f"question {number}" for number in range(CHUNK_JOBS + 3))
    chunks = list(enqueue(queue_connection, jobs, queue="bulk"))
    assert [len(chunk) for chunk in chunks] == [CHUNK_JOBS, 3]
    ids = [job_id for chunk in chunks for job_id in chunk]
    assert ids == [job.job_id for job in jobs]
    assert Queue("bulk", connection=queue_connection).job_ids == ids


def test_one_invalid_job_keeps_all_out(queue_connection: redis.Redis) -> None:
    with pytest.raises(InvalidJob, match="max_tokens"):
        submit(queue_connection, ["fine", {"prompt": "x", "max_tokens": 0}])
    assert queue_connection.keys() == []


def test_prompts_objects_and_jobs_are_accepted(queue_connection: redis.Redis) -> None:
    submit(queue_connection, ["one", {"prompt": "two", "top_k": 5}, PromptJob(prompt="three")])
    claims = JobQueue(queue_connection, "w", 60.0).claim(["default"], 8).claims
    assert [claim.job.prompt for claim in claims] == ["one", "two", "three"]
    assert claims[1].job.top_k == 5


@pytest.mark.parametrize("lost", ["lose_commands", "lose_replies_to"])
def test_a_lost_transaction_is_enqueued_once(lossy_proxy: Any, tmp_path: Path, lost: str) -> None:
    connection = connect(lossy_proxy.url, tmp_path)
    getattr(lossy_proxy, lost).append(b"EVALSHA")
    ids = submit(connection, ["one", "two", "three"])
    assert getattr(lossy_proxy, lost) == []
    assert Queue("default", connection=connection).job_ids == list(ids)
    connection.close()


def test_ends_come_as_they_come(queue_connection: redis.Redis) -> None:
    ids = submit(queue_connection, ["done", "failed", "cancelled", "waiting", "deleted"])
    queue = JobQueue(queue_connection, "w", 60.0)
    claims = queue.claim(["default"], 3).claims
    queue.acknowledge(
        [
            Acknowledgement(claims[0], AttemptState.DONE, {"text": "yes"}),
            Acknowledgement(claims[1], AttemptState.FAILED, error="context_length: 9000 tokens, at most 8192"),
            Acknowledgement(claims[2], AttemptState.CANCELLED),
        ]
    )
    queue_connection.delete(f"rq:job:{ids[4]}")
    coming = ends(queue_connection, ids, timeout_seconds=0.05)
    assert [next(coming) for _ in range(4)] == [
        JobEnd(ids[0], JobState.DONE, value={"text": "yes"}),
        JobEnd(ids[1], JobState.FAILED, error="context_length: 9000 tokens, at most 8192"),
        JobEnd(ids[2], JobState.CANCELLED),
        JobEnd(ids[4], JobState.FAILED, error="the queue does not know it: it expired or was deleted"),
    ]
    with pytest.raises(TryLater, match=f"1 jobs have not ended within 0.05 s, first {ids[3]}"):
        next(coming)


def test_the_client_submits_and_waits(embedded_data_dir: Path) -> None:
    with Client(data_dir=embedded_data_dir, queue="client") as client:
        client.connection.flushdb()
        job_id = client.submit("Why is the sky blue?", max_tokens=3)
        others = client.submit_many([{"prompt": "a"}, PromptJob(prompt="b")], temperature=0.5)
        assert client.result(job_id) is None
        queue = JobQueue(client.connection, "w", 60.0)
        claims = queue.claim(["client"], 8).claims
        assert [claim.job.temperature for claim in claims] == [0.0, 0.5, 0.5]
        assert claims[0].job.max_tokens == 3
        queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {"text": "!"}) for claim in claims])
        assert client.result(job_id) == {"text": "!"}
        assert {end.state for end in client.wait([job_id, *others], timeout_seconds=5).values()} == {JobState.DONE}
        client.connection.flushdb()


def test_a_client_without_a_queue_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="redis_url"):
        Client()


def test_a_client_with_a_database_records_its_jobs(
    embedded_data_dir: Path, tmp_path: Path, migrated_sqlite_file: Path
) -> None:
    url = f"sqlite:///{shutil.copy(migrated_sqlite_file, tmp_path)}"
    with Client(data_dir=embedded_data_dir, database_url=url, queue="client") as client:
        client.connection.flushdb()
        job_id = client.submit("Why?", batch_id="b")
        database = open_database(url)
        assert JobStore(database).states([job_id]) == {job_id: JobState.QUEUED}
        database.dispose()
        client.connection.flushdb()


def test_jobs_enqueued_again_are_there_once(queue_connection: redis.Redis) -> None:
    jobs = prepare(["one", "two"])
    for _ in range(2):
        assert [*enqueue(queue_connection, jobs)] == [tuple(job.job_id for job in jobs)]
    assert queue_connection.llen("rq:queue:default") == 2
    claims = JobQueue(queue_connection, "w", 60.0).claim(["default"], 8).claims
    list(enqueue(queue_connection, jobs))
    assert (len(claims), queue_connection.llen("rq:queue:default")) == (2, 0)


def test_a_producer_may_repeat_what_met_an_error(
    embedded_data_dir: Path, tmp_path: Path, migrated_sqlite_file: Path
) -> None:
    url = f"sqlite:///{shutil.copy(migrated_sqlite_file, tmp_path)}"
    with Client(data_dir=embedded_data_dir, database_url=url, queue="client") as client:
        client.connection.flushdb()
        jobs = prepare(["one", "two"])
        client.connection.config_set("maxmemory", 1)
        try:
            with pytest.raises(TryLater, match="2 more are recorded"):
                client.enqueue(jobs)
        finally:
            client.connection.config_set("maxmemory", 0)
        ids = client.enqueue(jobs)
        assert ids == client.enqueue(jobs) == tuple(job.job_id for job in jobs)
        assert Queue("client", connection=client.connection).job_ids == list(ids)
        database = open_database(url)
        assert JobStore(database).states(ids) == dict.fromkeys(ids, JobState.QUEUED)
        database.dispose()
        client.connection.flushdb()
