"""Real processes, the real model: what is killed, stopped or watched in production."""

import os
import re
import signal
import subprocess
from typing import Any

import pytest
from rq import Queue

from tests.e2e.machine import Machine, eventually
from worker.errors import ExitCode
from worker.records import AttemptState, JobState

pytestmark = pytest.mark.model

CHILD_ID = re.compile(r"worker pagemill-\S+-(\d+)-[0-9a-f]{8} drains")
SUBJECTS = ("rivers", "tides", "clocks", "maps", "bees", "rust", "glass", "paper")
LONG = {"prompt": "Tell me a long story about a lighthouse.", "max_tokens": 400, "ignore_eos": True}


def prompts(count: int, **fields: Any) -> list[dict[str, Any]]:
    """Return jobs whose outputs are of different lengths, so that some run whenever another ends."""
    return [
        {
            "prompt": f"{number}. What is known about {SUBJECTS[number % len(SUBJECTS)]}?",
            "max_tokens": num_tokens(number),
            "ignore_eos": True,
            **fields,
        }
        for number in range(count)
    ]


def num_tokens(number: int) -> int:
    return 8 + 3 * (number % 7)


def test_jobs_of_a_killed_worker_are_done_once_by_the_next(machine: Machine) -> None:
    ids = machine.submit(*prompts(24, batch_id="nightly"))
    with machine.worker() as worker:
        eventually(lambda: machine.count(ids, JobState.DONE) and machine.count(ids, JobState.RUNNING) > 4, worker)
        worker.kill()
    assert machine.count(ids, JobState.DONE) < 24
    running = [job_id for job_id, state in machine.store.states(ids).items() if state is JobState.RUNNING]
    assert running

    with machine.worker() as worker:
        eventually(lambda: machine.count(ids, JobState.DONE) == 24, worker)
        more = machine.submit(*prompts(4, max_tokens=60))
        eventually(lambda: machine.count(more, JobState.RUNNING) == 4, worker)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == ExitCode.OK
        log = worker.log.read_text()
        assert "Traceback" not in log
        assert "(GGUF Q4_1, dequantised to " in log
    assert machine.count(more, JobState.DONE) == 4

    lost = 0
    for number, job_id in enumerate(ids):
        job = machine.store.job(job_id)
        assert job is not None
        assert job.result is not None
        assert (job.result.completion_tokens, job.result.finish_reason) == (num_tokens(number), "length")
        assert job.stats is not None
        states = [attempt.state for attempt in job.attempts]
        assert states[-1] is AttemptState.DONE
        assert set(states[:-1]) <= {AttemptState.LOST}
        lost += len(states) > 1
    assert lost >= len(running)

    check_ledger(machine)
    summary = machine.read_json("report", "--batch", "nightly")
    assert summary["jobs_by_state"]["done"] == 24
    assert machine.read_json("report", "latency")
    (queue,) = machine.read_json("status")["queues"]
    assert (queue["waiting"], queue["running"], queue["done"]) == (0, 0, 28)
    shown = machine.read_json("show", running[0])
    assert shown["attempts"][0]["state"] == "lost"
    assert shown["result"]["text"]


def check_ledger(machine: Machine) -> None:
    """The time of the worker that ended in order is its attempts' and its own, within 1 %; of the one that was killed,
    what its lost attempts had used is unattributed."""
    ended, killed = machine.read_json("ledger")
    assert ended["started_at"] > killed["started_at"]
    own = ended["idle_seconds"] + ended["loading_seconds"] + ended["overhead_seconds"]
    assert abs(ended["attempt_engine_seconds"] + own - ended["wall_seconds"]) < 0.01 * ended["wall_seconds"]
    assert abs(ended["unattributed_engine_seconds"]) < 1e-6
    assert killed["unattributed_engine_seconds"] > 0
    assert killed["attempt_engine_seconds"] > 0


def test_worker_is_watched_cancelled_and_stopped(embedded_machine: Machine) -> None:
    machine = embedded_machine
    with machine.worker() as worker:
        (job_id,) = machine.submit({**LONG, "max_tokens": 60})
        printed = tail_while_it_runs(machine, job_id)
        job = machine.store.job(job_id)
        assert job is not None
        assert job.result is not None
        assert printed.removesuffix("\n") == job.result.text

        with machine.connect() as connection:
            bare = Queue("default", connection=connection, serializer="json").enqueue(
                "pagemill.prompt", {"prompt": "What is 2 + 2?", "max_tokens": 8}
            )
            eventually(lambda: bare.is_finished, worker)
            value = bare.return_value()
        assert value is not None
        assert value["text"] == machine.read("show", bare.id, "--output").removesuffix("\n")

        cancelled, endless = machine.submit(LONG, LONG)
        eventually(lambda: machine.count([cancelled, endless], JobState.RUNNING) == 2, worker)
        machine.read("cancel", cancelled)
        eventually(lambda: machine.count([cancelled], JobState.CANCELLED), worker)

        worker.signal(signal.SIGINT)
        eventually(lambda: "claims end; 1 held jobs" in worker.log.read_text(), worker)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == ExitCode.OK
    assert machine.count([endless], JobState.QUEUED) == 1
    job = machine.store.job(endless)
    assert job is not None
    assert [attempt.state for attempt in job.attempts] == [AttemptState.REQUEUED]
    (queue,) = machine.read_json("status")["queues"]
    assert queue["waiting"] == 1


def tail_while_it_runs(machine: Machine, job_id: str) -> str:
    """Return what `pagemill tail` prints of a job; the first of it must come before the job's end."""
    with subprocess.Popen(
        machine.command("tail", job_id),
        env=machine.environ,
        cwd=machine.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        assert machine.count([job_id], JobState.RUNNING) == 1
        rest = process.stdout.read()
    assert process.returncode == ExitCode.OK
    return first + rest


def test_worker_that_died_is_started_again_and_stopped_in_order(embedded_machine: Machine) -> None:
    machine = embedded_machine
    ids = machine.submit(*prompts(6))
    with machine.worker("--restart") as parent:
        eventually(lambda: machine.count(ids, JobState.RUNNING) == 6, parent)
        (process_id,) = CHILD_ID.findall(parent.log.read_text())
        os.kill(int(process_id), signal.SIGKILL)
        eventually(lambda: machine.count(ids, JobState.DONE) == 6, parent)
        log = parent.log.read_text()
        assert "the worker ended with SIGKILL; it starts again in 0 s" in log
        assert "died (signal 9)" in log
        parent.signal(signal.SIGTERM)
        assert parent.wait() == ExitCode.OK
    assert len(CHILD_ID.findall(parent.log.read_text())) == 2


def test_unreachable_database_is_one_line(embedded_machine: Machine) -> None:
    url = "postgresql://someone:secret@127.0.0.1:9/none"
    done = embedded_machine.run("worker", PAGEMILL_DATABASE_URL=url)
    assert done.returncode == ExitCode.UNAVAILABLE
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: cannot use the database at postgresql://someone@127.0.0.1:9/none: ")
    assert "secret" not in line
