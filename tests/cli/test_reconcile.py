"""`pagemill reconcile`: what it says and does."""

import json

import redis
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from worker.records import JobState
from worker.sql.store import JobStore


def test_what_redis_lost_is_queued_again(run: Run, store: JobStore, empty_queue: redis.Redis) -> None:
    ids = run("submit", "--jsonl", "-", stdin='"one"\n"two"\n').stdout.split()
    empty_queue.flushdb()
    dry = json.loads(run("reconcile", "--dry-run", "--json").stdout)
    assert (dry["rebuilt"], dry["queued"], empty_queue.keys()) == (2, 0, [])
    result = run("reconcile")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2  were lost by Redis, and are queued again" in result.stdout
    assert Queue("default", connection=empty_queue).job_ids == ids
    assert json.loads(run("reconcile", "--json").stdout)["queued"] == 2
    assert set(store.states(ids).values()) == {JobState.QUEUED}


def test_a_rebuilt_batch_is_worked_off(
    run: Run, store: JobStore, empty_queue: redis.Redis, canned_worker: CannedWorker
) -> None:
    run("submit", "--jsonl", "-", "--batch", "night", stdin='"one"\n"two"\n"three"\n')
    (claim,) = canned_worker.claim(1)
    canned_worker.end(claim, "yes")
    empty_queue.flushdb()
    run("reconcile")
    assert canned_worker.answer("yes") == 2
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.states) == (3, {JobState.DONE: 3})


def test_a_database_that_is_away_exits_69(run: Run) -> None:
    assert run("reconcile", "--database-url", "postgresql://me@127.0.0.1:1/db").exit_code == 69


def test_a_lost_job_can_be_cancelled(run: Run, store: JobStore, empty_queue: redis.Redis) -> None:
    job_id = run("submit", "x").stdout.strip()
    empty_queue.flushdb()
    assert run("cancel", job_id).exit_code == 0
    assert store.states([job_id]) == {job_id: JobState.CANCELLED}
    assert json.loads(run("reconcile", "--json").stdout)["rebuilt"] == 0


def test_a_lost_job_can_be_retried(run: Run, empty_queue: redis.Redis) -> None:
    job_id = run("submit", "x").stdout.strip()
    empty_queue.flushdb()
    assert run("retry", job_id).exit_code == 0
    assert Queue("default", connection=empty_queue).job_ids == [job_id]


def test_recorded_jobs_that_wait_are_in_status_and_reports(run: Run, empty_queue: redis.Redis) -> None:
    job_id = run("submit", "x", "--batch", "night").stdout.strip()
    assert json.loads(run("show", job_id, "--json").stdout)["state"] == "queued"
    assert json.loads(run("status", job_id, "--json").stdout)[job_id] == "queued"
    for report in ("summary", "latency", "memory", "prefix"):
        assert run("report", report, "--json").exit_code == 0
