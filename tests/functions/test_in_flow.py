"""Plain functions beside prompts: RQ's features work, the allow-list holds, leases do what they do for prompts."""

from datetime import timedelta
from typing import Any

import pytest
import redis
from rq import Callback, Queue, Repeat, Retry, Worker
from rq.command import send_kill_horse_command, send_stop_execution_command, send_stop_job_command
from rq.group import Group
from rq.job import Dependency, Job, JobStatus
from rq.suspension import resume, suspend

from scripts.fault_table.proxy import Proxy
from tests.functions import tasks
from tests.functions.tasks import add, ask_for_retry, catch_time_out, fail, hang, note_in_meta, wait, wait_and_fail
from tests.worker.fakes import ENDLESS, ScriptedRunner, answer, eventually, make_flow, running
from worker.client import submit
from worker.queue.access import CancelOutcome, QueueAccess
from worker.queue.job_queue import JobQueue
from worker.queue.queue_records import FunctionRecord
from worker.queue.suspects import Suspects
from worker.records import JobState
from worker.sql.store import JobStore

TASKS = "tests.functions.tasks"
ALL: dict[str, Any] = {"functions": (f"{TASKS}.*",)}
LEASES = "pagemill:leases:default"


@pytest.fixture
def queue(connection: redis.Redis) -> Queue:
    """The queue as a producer with nothing but RQ sees it."""
    return Queue("default", connection=connection, serializer="json")


def value(connection: redis.Redis, key: str) -> str:
    """Return what Redis has under a key; '' is nothing."""
    found: Any = connection.get(key)
    return (found or b"").decode()


def leases(connection: redis.Redis) -> dict[bytes, float]:
    """Return the ends of all leases, in seconds."""
    members: Any = connection.zrange(LEASES, 0, -1, withscores=True)
    return dict(members)


def reason(job: Job) -> str:
    """Return why a job failed, as RQ's tools show it."""
    result = job.latest_result()
    assert result is not None
    return result.exc_string or ""


def test_functions_and_prompts_share_a_queue(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    first = queue.enqueue(add, 1, other=2)
    (prompt,) = submit(connection, ["hello"])
    last = queue.enqueue(note_in_meta)
    make_flow(connection, sqlite_store, **ALL).run(burst=True)
    assert (first.return_value(refresh=True), last.return_value(refresh=True)) == (3, last.id)
    last.refresh()
    assert last.meta == {"seen": True}
    result = first.latest_result()
    assert result is not None
    assert result.worker_name == "worker-1"
    assert sqlite_store.states([prompt, first.id]) == {prompt: JobState.DONE}, "functions have no rows"
    assert sorted(queue.finished_job_registry.get_job_ids()) == sorted([first.id, prompt, last.id])
    assert connection.keys("pagemill:leases:*") == []
    assert connection.keys("rq:execution*") == []
    assert connection.hkeys(first.key).count(b"pagemill_execution") == 0


def test_without_the_setting_no_function_runs(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(add, 1)
    make_flow(queue.connection, sqlite_store).run(burst=True)
    detail = sqlite_store.job(job.id)
    assert detail is not None
    assert (detail.state, detail.error_code) == (JobState.DEAD, "wrong_function")
    assert job.get_status() is JobStatus.FAILED


def test_failure_is_rqs(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(fail, "no luck", on_failure=Callback(f"{TASKS}.note_failure"))
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert job.get_status() is JobStatus.FAILED
    assert "ValueError: no luck" in reason(job)
    assert job.id in queue.failed_job_registry
    assert value(queue.connection, f"failure:{job.id}") == "ValueError: no luck"


def test_retries_of_both_kinds(queue: Queue, sqlite_store: JobStore) -> None:
    raising = queue.enqueue(fail, "again", retry=Retry(max=2, interval=[0, 1]))
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    raising.refresh()
    assert (raising.get_status(), raising.retries_left) == (JobStatus.FAILED, 0)
    assert not len(queue.scheduled_job_registry), "the delayed one was awaited"


def test_repeats(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(add, 1, repeat=Repeat(times=2))
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert len(job.results()) == 3
    job.refresh()
    assert (job.get_status(), job.repeats_left) == (JobStatus.FINISHED, 0)


def test_delayed_functions(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue_in(timedelta(seconds=1), add, 1, 1)
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert job.return_value(refresh=True) == 2


def test_dependents_across_kinds(queue: Queue, sqlite_store: JobStore) -> None:
    """A prompt waits for a function, and another function for the prompt."""
    first = queue.enqueue(add, 1)
    prompt = queue.enqueue("pagemill.prompt", {"prompt": "then"}, depends_on=first)
    last = queue.enqueue(add, 2, depends_on=prompt)
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert [job.get_status() for job in (first, prompt, last)] == [JobStatus.FINISHED] * 3
    assert (prompt.return_value(refresh=True) or {})["text"] == answer("then")


def test_groups(queue: Queue, sqlite_store: JobStore) -> None:
    group = Group.create(connection=queue.connection, name="sums")
    group.enqueue_many(queue, [Queue.prepare_data(add, (number,)) for number in range(5)])
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    jobs = Group.fetch("sums", connection=queue.connection).get_jobs()
    assert {Job.fetch(job.id, queue.connection, "json").return_value() for job in jobs} == {0, 1, 2, 3, 4}


def test_suspension(queue: Queue, sqlite_store: JobStore) -> None:
    connection = queue.connection
    job = queue.enqueue(add, 1)
    suspend(connection)
    with running(make_flow(connection, sqlite_store, sweep_seconds=0.05, **ALL)) as worker:
        eventually(lambda: [seen.get_state() for seen in Worker.all(connection=connection)] == ["suspended"])
        assert job.get_status() is JobStatus.QUEUED
        resume(connection)
        eventually(lambda: job.get_status() is JobStatus.FINISHED)
        eventually(lambda: [seen.get_state() for seen in Worker.all(connection=connection)] == ["idle"])
        worker.stop()


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


@pytest.mark.parametrize("function", [wait, hang])
def test_time_outs(queue: Queue, sqlite_store: JobStore, function: Any) -> None:
    """Also where the thread cannot be interrupted: then the job fails without it."""
    job = queue.enqueue(function, 600, job_timeout=1, on_failure=Callback(f"{TASKS}.note_failure"))
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert job.get_status() is JobStatus.FAILED
    assert "rq.timeouts.JobTimeoutException: Task exceeded maximum timeout value (1 seconds)" in reason(job)
    assert value(queue.connection, f"failure:{job.id}").startswith("JobTimeoutException")


def test_function_may_catch_its_time_out(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(catch_time_out, job_timeout=1)
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert job.return_value(refresh=True) == "Task exceeded maximum timeout value (1 seconds)"


def test_function_asks_for_a_retry(queue: Queue, sqlite_store: JobStore) -> None:
    job = queue.enqueue(ask_for_retry)
    make_flow(queue.connection, sqlite_store, **ALL).run(burst=True)
    assert job.return_value(refresh=True) == "second"


def test_functions_run_while_the_engine_is_full(queue: Queue, sqlite_store: JobStore) -> None:
    runner = ScriptedRunner(step_seconds=0.001)
    submit(queue.connection, [{"prompt": f"{ENDLESS} {number}", "max_tokens": 10_000} for number in range(300)])
    with running(make_flow(queue.connection, sqlite_store, runner, **ALL)) as worker:
        eventually(lambda: runner.order)
        job = queue.enqueue(add, 1, at_front=True)
        eventually(lambda: job.get_status() is JobStatus.FINISHED)
        worker.stop_at_once()


@pytest.mark.parametrize("name", ["success", "failure", "stopped"])
def test_callbacks_are_allow_listed_too(queue: Queue, sqlite_store: JobStore, name: str) -> None:
    """A record names them: one that is not allowed is not imported, and fails its job."""
    refused = {f"on_{name}": Callback("os.getcwd")}
    calls: dict[str, tuple[Any, list[object]]] = {
        "success": (add, [1]),
        "failure": (fail, ["x"]),
        "stopped": (wait, []),
    }
    function, arguments = calls[name]
    job = queue.enqueue(function, args=arguments, job_timeout=-1, **refused)
    with running(make_flow(queue.connection, sqlite_store, **ALL)) as worker:
        if name == "stopped":
            eventually(lambda: tasks.begun == [job.id])
            send_stop_job_command(queue.connection, job.id, serializer="json")
        expected = JobStatus.STOPPED if name == "stopped" else JobStatus.FAILED
        eventually(lambda: job.get_status() is expected)
        worker.stop()
    if name != "stopped":
        assert "'os.getcwd' is not among the functions" in reason(job)


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
