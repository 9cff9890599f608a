"""RQ's own command runs our worker, without an engine: plain functions only."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from rq import Queue, Worker
from rq.command import send_shutdown_command
from rq.job import JobStatus

from tests.functions.tasks import add, fail, hang, report_pid
from tests.worker.fakes import eventually
from worker.client import submit
from worker.queue.embedded import embedded_url
from worker.rq_worker import SAME_SIGNAL_SECONDS

TASKS = "tests.functions.tasks"
WAIT_SECONDS = 60.0
ROOT = Path(__file__).parents[2]


def command(data_dir: Path, *arguments: str, **settings: str) -> subprocess.Popen[str]:
    """Start `rq worker` with our class. Settings are those of the environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    given = {f"PAGEMILL_{name.upper()}": value for name, value in settings.items()}
    command_line = [sys.executable, "-m", "rq.cli", "worker", "-w", "worker.rq_worker.PagemillWorker"]
    return subprocess.Popen(
        [*command_line, "-u", embedded_url(data_dir), *arguments],
        cwd=data_dir,  # where no pagemill.toml is
        env={**environ, "PYTHONPATH": str(ROOT), **given},
        stderr=subprocess.PIPE,
        text=True,
    )


def run(data_dir: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Run `rq worker` to its end. Returns its exit code and log."""
    with command(data_dir, *arguments, **settings) as process:
        try:
            log = process.communicate(timeout=WAIT_SECONDS)[1]
        finally:
            process.kill()
    return process.returncode, log


@contextmanager
def working(data_dir: Path, *arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """Run `rq worker` while the block lasts."""
    with command(data_dir, *arguments, **settings) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


ALL = {"functions": f"{TASKS}.*"}


def test_burst(queue: Queue, embedded_data_dir: Path) -> None:
    jobs = [queue.enqueue(add, number, other=1) for number in range(20)]
    failing = queue.enqueue(fail, "no luck")
    after = queue.enqueue(add, 5, depends_on=jobs[0])
    code, log = run(embedded_data_dir, "--burst", **ALL)
    assert code == 0, log
    assert [job.return_value(refresh=True) for job in jobs] == [number + 1 for number in range(20)]
    assert (failing.get_status(), after.return_value(refresh=True)) == (JobStatus.FAILED, 5)
    assert Worker.all(connection=queue.connection) == []
    assert queue.connection.keys("pagemill:leases:*") == []


def test_without_functions_it_does_not_begin(queue: Queue, embedded_data_dir: Path) -> None:
    job = queue.enqueue(add, 1)
    code, log = run(embedded_data_dir, "--burst")
    assert code == 1
    assert "functions: names none" in log
    assert job.get_status() is JobStatus.QUEUED


def test_prompts_are_left_to_workers_with_an_engine(queue: Queue, embedded_data_dir: Path) -> None:
    (prompt,) = submit(queue.connection, ["hello"])
    other = Queue("other", connection=queue.connection, serializer="json").enqueue(add, 1)
    code, log = run(embedded_data_dir, "--burst", "default", "other", **ALL)
    assert code == 0, log
    assert "queue default has prompt jobs, and this worker no engine" in log
    assert queue.job_ids == [prompt]
    assert other.get_status() is JobStatus.FINISHED


def test_refused_records_are_kept_raw(queue: Queue, embedded_data_dir: Path) -> None:
    foreign = queue.enqueue("os.getpid")
    pickled = Queue("default", connection=queue.connection).enqueue(add, 1)
    code, log = run(embedded_data_dir, "--burst", **ALL)
    assert code == 0, log
    assert (foreign.get_status(), pickled.get_status()) == (JobStatus.FAILED, JobStatus.FAILED)
    assert queue.connection.llen("pagemill:dead:default") == 2


@pytest.mark.parametrize("how", ["signal", "command"])
def test_warm_shutdown_finishes_what_runs(queue: Queue, embedded_data_dir: Path, how: str) -> None:
    connection = queue.connection
    with working(embedded_data_dir, "--name", "mine", **ALL) as process:
        job = queue.enqueue(hang, 2)
        eventually(lambda: job.get_status() is JobStatus.STARTED)
        (seen,) = Worker.all(connection=connection)
        assert (seen.name, [execution.job_id for execution in seen.get_current_executions()]) == ("mine", [job.id])
        if how == "signal":
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)  # RQ's pool tells a worker twice
        else:
            send_shutdown_command(connection, "mine")
        eventually(lambda: connection.hexists(seen.key, "shutdown_requested_date") or process.poll() is not None)
        later = queue.enqueue(add, 1)
        assert process.wait(WAIT_SECONDS) == 0
    assert job.return_value(refresh=True) == "woken"
    assert later.get_status() is JobStatus.QUEUED


def test_cold_shutdown_hands_back(queue: Queue, embedded_data_dir: Path) -> None:
    with working(embedded_data_dir, **ALL) as process:
        job = queue.enqueue(hang, 600, job_timeout=-1)
        eventually(lambda: job.get_status() is JobStatus.STARTED)
        process.send_signal(signal.SIGTERM)
        time.sleep(2 * SAME_SIGNAL_SECONDS)  # counted from when the worker takes the first one, which may be later
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
    assert job.get_status() is JobStatus.QUEUED
    assert queue.job_ids == [job.id]


def test_job_of_a_killed_worker_runs_again(queue: Queue, embedded_data_dir: Path) -> None:
    timing = {"lease_seconds": "1", "beat_seconds": "0.2", "sweep_seconds": "0.2"}
    job = queue.enqueue(report_pid, job_timeout=-1)
    with working(embedded_data_dir, **ALL, **timing) as victim:
        eventually(lambda: queue.connection.llen(f"pids:{job.id}") == 1)
        victim.kill()
    with working(embedded_data_dir, **ALL, **timing):
        eventually(lambda: queue.connection.llen(f"pids:{job.id}") == 2)
        queue.connection.set(f"go:{job.id}", 1)
        eventually(lambda: job.get_status() is JobStatus.FINISHED)
    (result,) = job.results()
    assert result.return_value == 2


def test_schedule_without_a_process(queue: Queue, embedded_data_dir: Path) -> None:
    with working(embedded_data_dir, "--with-scheduler", **ALL) as process:
        job = queue.enqueue_in(timedelta(seconds=1), add, 1)
        eventually(lambda: job.get_status() is JobStatus.FINISHED)
        assert queue.scheduler_pid == process.pid, "RQ's tools see the schedule here"
    assert job.return_value(refresh=True) == 1
