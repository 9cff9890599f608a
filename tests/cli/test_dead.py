"""`pagemill dead`: what was dead-lettered is listed, shown, queued again and purged."""

import json
from typing import Any

import pytest
import redis
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from worker.queue.crashes import CrashKind
from worker.queue.suspects import DeadWorker, Suspects
from worker.records import JobState
from worker.sql.store import JobStore

Crash = Any


@pytest.fixture
def poison(run: Run, empty_queue: redis.Redis, canned_worker: CannedWorker) -> str:
    """A job that ended three workers and was dead-lettered for that."""
    job_id = run("submit", "the \x1b[31mend", "--seed", "7").stdout.strip()
    (claim,) = canned_worker.claim()
    suspects = Suspects(empty_queue, "canned", lease_seconds=60.0)
    for signal in (9, 11, None):
        suspects.abandon(DeadWorker("canned", CrashKind.DEATH, signal, frozenset({claim.execution_id})))
        assert suspects.seek_duty(["default"])
        claimed = suspects.claim()
        claim = claimed.claims[0] if claimed.claims else claim
    canned_worker.store.record_dead(claimed.dead)
    canned_worker.queue.dead_letter(claimed.dead)
    return job_id


@pytest.fixture
def raw(empty_queue: redis.Redis, canned_worker: CannedWorker) -> str:
    """A record that is no prompt job, dead-lettered."""
    job_id = Queue("bulk", connection=empty_queue, serializer="json").enqueue("os.system", "true").id
    claimed = canned_worker.queue.claim(["bulk"], 1)
    canned_worker.store.record_dead(claimed.dead)
    canned_worker.queue.dead_letter(claimed.dead)
    return job_id


def test_dead_jobs_are_listed_and_filtered(run: Run, poison: str, raw: str) -> None:
    jobs = json.loads(run("dead", "list", "--json").stdout)
    assert {job["id"]: (job["queue"], job["error_code"]) for job in jobs} == {
        poison: ("default", "poison"),
        raw: ("bulk", "wrong_function"),
    }
    (job,) = json.loads(run("dead", "list", "--queue", "bulk", "--since", "1h", "--json").stdout)
    assert job["id"] == raw
    assert json.loads(run("dead", "list", "--before", "1h", "--json").stdout) == []
    assert poison in run("dead", "list").stdout


def test_diagnosis_tells_what_reproduces_the_crash(run: Run, poison: str) -> None:
    diagnosis = json.loads(run("dead", "show", poison, "--json").stdout)["diagnosis"]
    assert diagnosis["kind"] == "poison"
    assert diagnosis["payload"]["prompt"] == "the \x1b[31mend"
    assert diagnosis["seed"] == 7
    assert [(crash["worker"], crash["kind"], crash["signal"]) for crash in diagnosis["crashes"]] == [
        ("canned", "death", 9),
        ("canned", "death", 11),
        ("canned", "death", None),
    ]
    shown = run("dead", "show", poison).stdout
    assert "alone in the last" in shown
    assert "signal 9" in shown


def test_raw_record_is_shown(run: Run, raw: str) -> None:
    shown = run("dead", "show", raw).stdout
    assert "os.system" in shown
    assert "wrong_function" in shown


def test_job_that_is_not_dead_cannot_be_shown(run: Run) -> None:
    result = run("dead", "show", "nobody")
    assert (result.exit_code, result.stderr) == (2, "error: job nobody is unknown\n")


def test_requeued_job_begins_with_a_clean_record(
    run: Run, poison: str, raw: str, store: JobStore, empty_queue: redis.Redis, canned_worker: CannedWorker
) -> None:
    result = run("dead", "requeue", "--all", "--json")
    assert json.loads(result.stdout) == {poison: "retried", raw: "no_prompt"}
    assert result.exit_code == 1
    job = store.job(poison)
    assert job is not None
    assert (job.state, job.error_code, job.diagnosis) == (JobState.QUEUED, None, None)
    assert canned_worker.answer("all is well") == 1
    assert store.states([poison]) == {poison: JobState.DONE}
    assert json.loads(run("dead", "requeue", poison, "--json").stdout) == {poison: "unknown"}


def test_purged_jobs_leave_no_trace(run: Run, poison: str, raw: str, store: JobStore, empty_queue: redis.Redis) -> None:
    refused = run("dead", "purge", "--all", stdin="n\n")
    assert refused.exit_code == 1
    assert store.states([poison, raw]) == {poison: JobState.DEAD, raw: JobState.DEAD}
    assert json.loads(run("dead", "purge", poison, "--yes", "--json").stdout) == {"purged": [poison]}
    assert run("dead", "purge", "--all", "--before", "1h", "--yes").exit_code == 0
    assert store.states([poison, raw]) == {raw: JobState.DEAD}
    assert run("dead", "purge", "--all", stdin="y\n").exit_code == 0
    assert store.states([poison, raw]) == {}
    left: Any = empty_queue.keys("*")
    assert not [key for key in left if poison.encode() in key or raw.encode() in key]
    assert empty_queue.keys("pagemill:dead:*") == []
    assert run("dead", "purge", poison, "--yes").exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("some-id", "--all")])
def test_choice_is_explicit(run: Run, arguments: tuple[str, ...]) -> None:
    for command in ("requeue", "purge"):
        result = run("dead", command, *arguments)
        assert result.exit_code == 2
        assert "--all" in result.stderr
