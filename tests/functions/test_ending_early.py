"""Functions that are stopped, killed, cancelled, deleted, taken away or handed back; leases as with prompts."""

import pytest
from rq import Callback, Queue, Retry
from rq.command import send_kill_horse_command, send_stop_execution_command, send_stop_job_command
from rq.job import JobStatus
from rq.suspension import resume, suspend

from tests.functions import tasks
from tests.functions.as_rq_sees import ALL, LEASES, TASKS, leases, value
from tests.functions.tasks import add, hang, wait
from tests.worker.fakes import eventually, make_flow, running
from worker.queue.access import CancelOutcome, QueueAccess
from worker.queue.job_queue import JobQueue
from worker.sql.store import JobStore


@pytest.mark.parametrize("what", ["stop-job", "stop-execution", "pagemill cancel"])
def test_running_function_is_stopped(queue: Queue, sqlite_store: JobStore, what: str) -> None:
    connection = queue.connection
    job = queue.enqueue(hang, 600, job_timeout=-1, on_stopped=Callback(f"{TASKS}.note_stop"), retry=Retry(max=3))
    with running(make_flow(connection, sqlite_store, function_threads=1, **ALL)) as worker:
        eventually(lambda: job.id in tasks.begun)
        if what == "stop-job":
            send_stop_job_command(connection, job.id, serializer="json")
        elif what == "stop-execution":
            send_stop_execution_command(connection, job.id, job.get_executions()[0].id)
        else:
            assert QueueAccess(connection).cancel(job.id).outcome is CancelOutcome.CANCELLING
        eventually(lambda: job.get_status() is JobStatus.STOPPED)
        eventually(lambda: not len(worker.flow._held))
        follower = queue.enqueue(add, 1)
        eventually(lambda: follower.get_status() is JobStatus.FINISHED)
        worker.stop()
    assert value(connection, f"stopped:{job.id}") == "yes"
    assert connection.zcard("pagemill:cancelling") == 0
    assert connection.keys("pagemill:leases:*") == []


def test_killed_function_is_retried(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(wait, job_timeout=-1, retry=Retry(max=1))
    with running(make_flow(queue.connection, sqlite_store, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        send_kill_horse_command(queue.connection, "worker-1")
        eventually(lambda: tasks.begun == [job.id] * 2)
        tasks.may_go_on.set()
        eventually(lambda: job.get_status() is JobStatus.FINISHED)
        worker.stop()


def test_cancelled_function_runs_on_as_with_rq(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    job = queue.enqueue(wait, "worth it", job_timeout=-1)
    with running(make_flow(connection, sqlite_store, beat_seconds=0.02, sweep_seconds=0.02, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        job.cancel()
        before = leases(connection)
        eventually(lambda: leases(connection) != before)
        tasks.may_go_on.set()
        eventually(lambda: job.return_value(refresh=True) == "worth it")
        worker.stop()
    assert tasks.begun == [job.id]


def test_deleted_function_is_not_brought_back(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(wait, job_timeout=-1)
    with running(make_flow(queue.connection, sqlite_store, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        job.delete()
        tasks.may_go_on.set()
        eventually(lambda: not len(worker.flow._held))
        worker.stop()
    assert not queue.connection.exists(job.key)


def test_function_whose_lease_is_lost_runs_elsewhere_and_ends_once(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    job = queue.enqueue(wait, job_timeout=-1)
    first = make_flow(connection, sqlite_store, beat_seconds=15.0, sweep_seconds=60.0, **ALL)
    second = make_flow(connection, sqlite_store, name="worker-2", **ALL)
    with running(first) as loser:
        eventually(lambda: len(tasks.begun) == 1)
        suspend(connection)
        connection.zadd(LEASES, dict.fromkeys(leases(connection), 1.0))
        JobQueue(connection, "sweeper", 30.0).sweep(["default"])
        loser.flow.worker.stopping.set()
        resume(connection)
        with running(second) as winner:
            eventually(lambda: len(tasks.begun) == 2)
            tasks.may_go_on.set()
            eventually(lambda: job.get_status() is JobStatus.FINISHED)
            winner.stop()
        loser.wait()
    (result,) = job.results()
    assert result.worker_name == "worker-2"


def test_leases_of_functions_are_renewed(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    job = queue.enqueue(wait, job_timeout=-1)
    with running(make_flow(connection, sqlite_store, beat_seconds=0.05, **ALL)) as worker:
        eventually(lambda: tasks.begun == [job.id])
        ((member, end),) = leases(connection).items()
        eventually(lambda: leases(connection)[member] > end + 0.2)
        assert [e.job_id for e in worker.flow.worker.get_current_executions(refresh=True)] == [job.id]
        tasks.may_go_on.set()
        worker.stop()
    assert job.get_status() is JobStatus.FINISHED


def test_what_is_not_finished_in_time_is_handed_back(queue: Queue, sqlite_store: JobStore) -> None:
    running_one = queue.enqueue(hang, 600, job_timeout=-1)
    waiting = [queue.enqueue(add, 1) for _ in range(3)]
    with running(make_flow(queue.connection, sqlite_store, drain_seconds=0.0, function_threads=1, **ALL)) as worker:
        eventually(lambda: len(worker.flow._held) == 4)
        worker.stop()
    assert queue.job_ids == [running_one.id, *(job.id for job in waiting)]
    assert running_one.get_status() is JobStatus.QUEUED
    assert queue.connection.keys("pagemill:leases:*") == []
