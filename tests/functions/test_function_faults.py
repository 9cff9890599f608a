"""Functions that crash workers, and ends that Redis does not take: as with prompts, nothing is lost or run twice."""

from typing import Any

import pytest
import redis
from rq import Callback, Queue
from rq.job import Dependency, JobStatus

from scripts.fault_table.proxy import Proxy
from tests.functions import tasks
from tests.functions.as_rq_sees import ALL, LEASES, TASKS, leases, reason, value
from tests.functions.tasks import add, wait, wait_and_fail
from tests.worker.fakes import eventually, make_flow, running
from worker.queue.job_queue import JobQueue
from worker.queue.queue_records import FunctionRecord
from worker.queue.suspects import Suspects
from worker.records import JobState
from worker.sql.store import JobStore


def test_function_that_takes_workers_down_is_dead_lettered(queue: Queue, sqlite_store: JobStore) -> None:
    """As with prompts: suspects run apart, and a third crash alone is the last."""
    connection = queue.connection
    culprit = queue.enqueue(add, 1)
    for number in range(3):
        suspects = Suspects(connection, f"dead-{number}", 30.0, read=lambda fields: FunctionRecord())
        job_queue = JobQueue(connection, f"dead-{number}", 30.0, read=lambda fields: FunctionRecord())
        claimed = suspects.claim() if suspects.seek_duty(["default"]) else job_queue.claim(["default"], 1)
        assert [claim.job_id for claim in claimed.functions] == [culprit.id]
        connection.zadd(LEASES, dict.fromkeys(leases(connection), 1.0))
        job_queue.sweep(["default"])
        suspects.end_duty()
    innocent = queue.enqueue(add, 2)
    make_flow(connection, sqlite_store, **ALL).run(burst=True)
    detail = sqlite_store.job(culprit.id)
    assert detail is not None
    assert (detail.state, detail.error_code) == (JobState.DEAD, "poison")
    assert culprit.get_status() is JobStatus.FAILED
    assert innocent.return_value(refresh=True) == 2


def test_function_that_is_a_suspect_runs_apart(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    jobs = [queue.enqueue(add, number) for number in range(5)]
    job_queue = JobQueue(connection, "dead", 30.0, read=lambda fields: FunctionRecord())
    job_queue.claim(["default"], 5)
    connection.zadd(LEASES, dict.fromkeys(leases(connection), 1.0))
    job_queue.sweep(["default"])
    assert connection.llen("pagemill:suspects:default") > 1
    make_flow(connection, sqlite_store, **ALL).run(burst=True)
    assert [job.return_value(refresh=True) for job in jobs] == list(range(5))


@pytest.mark.parametrize("function", [wait, wait_and_fail])
def test_end_whose_reply_is_lost_stands(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore, function: Any
) -> None:
    """It is not written twice, and what depends on it goes on; after a success with the next maintenance."""
    queue = Queue("default", connection=connection, serializer="json")
    job = queue.enqueue(function, job_timeout=-1)
    follower = queue.enqueue(add, 2, depends_on=Dependency(job, allow_failure=True))
    with running(make_flow(proxied, sqlite_store, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        proxy.lose_replies_to.append(b"XADD")  # the transaction that ends the job
        tasks.may_go_on.set()
        eventually(lambda: job.get_status() in (JobStatus.FINISHED, JobStatus.FAILED))
        eventually(lambda: not proxy.lose_replies_to)
        if function is wait:
            eventually(lambda: not len(worker.flow._held))
            worker.flow.worker.clean_registries()
        eventually(lambda: follower.get_status() is JobStatus.FINISHED)
        worker.stop()
    assert len(job.results()) == 1
    assert tasks.begun == [job.id]


@pytest.mark.parametrize("function", [wait, wait_and_fail])
def test_end_outlives_an_outage(
    connection: redis.Redis,
    proxy: Proxy,
    proxied: redis.Redis,
    sqlite_store: JobStore,
    caplog: pytest.LogCaptureFixture,
    function: Any,
) -> None:
    """The function is not run again for it, whether it returned or raised."""
    job = Queue("default", connection=connection, serializer="json").enqueue(function, job_timeout=-1)
    with running(make_flow(proxied, sqlite_store, beat_seconds=0.2, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        proxy.cut()
        tasks.may_go_on.set()
        eventually(lambda: "the end of a function's job is held" in caplog.text)
        proxy.mend()
        eventually(lambda: job.get_status() in (JobStatus.FINISHED, JobStatus.FAILED))
        worker.stop()
    assert len(job.results()) == 1
    assert tasks.begun == [job.id]


@pytest.mark.parametrize("callback", [f"{TASKS}.note_failure", "os.getcwd"])
def test_jobs_that_rqs_own_workers_abandoned_fail_as_with_rq(
    queue: Queue, sqlite_store: JobStore, callback: str
) -> None:
    """Maintenance does for them what RQ's does; their callbacks are allow-listed like all others."""
    connection = queue.connection
    job = queue.enqueue(add, 1, on_failure=Callback(callback))
    queue.remove(job)
    job.set_status(JobStatus.STARTED)
    connection.zadd("rq:wip:default", {f"{job.id}:execution": 1.0})
    make_flow(connection, sqlite_store, **ALL).run(burst=True)
    assert job.get_status() is JobStatus.FAILED
    assert "AbandonedJobError" in reason(job)
    assert value(connection, f"failure:{job.id}").startswith("AbandonedJobError") is callback.endswith("note_failure")
