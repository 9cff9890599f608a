"""Plain functions beside prompts: RQ's features work, and the allow-list holds."""

from datetime import timedelta
from typing import Any

import pytest
from rq import Callback, Queue, Repeat, Retry, Worker
from rq.command import send_stop_job_command
from rq.group import Group
from rq.job import Job, JobStatus
from rq.suspension import resume, suspend

from tests.functions import tasks
from tests.functions.as_rq_sees import ALL, TASKS, reason, value
from tests.functions.tasks import add, ask_for_retry, catch_time_out, fail, hang, note_in_meta, wait
from tests.worker.fakes import ENDLESS, ScriptedRunner, answer, eventually, make_flow, running
from worker.client import submit
from worker.records import JobState
from worker.sql.store import JobStore


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
