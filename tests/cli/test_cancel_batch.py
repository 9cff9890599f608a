"""`pagemill cancel --batch`, and cancelling what SQL and Redis see differently."""

import json
from datetime import UTC, datetime, timedelta

import redis
from rq import Queue

from tests.cli.conftest import CannedWorker, Run
from worker import records
from worker.queue.job_queue import Delay
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore


def submit(run: Run, prompt: str, *flags: str) -> str:
    return run("submit", prompt, *flags).stdout.strip()


def test_batch_is_cancelled_wherever_its_jobs_are(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis, store: JobStore
) -> None:
    done = submit(run, "done", "--batch", "night")
    canned_worker.answer("fine")
    running = submit(run, "running", "--batch", "night")
    canned_worker.claim()
    backing_off = submit(run, "backing off", "--batch", "night")
    (claim,) = canned_worker.claim()
    canned_worker.queue.delay([Delay(claim, records.Retry(datetime.now(UTC) + timedelta(hours=1), 1))])
    recorded = submit(run, "recorded", "--batch", "night", "--queue", "bulk")
    rqs = Queue("bulk", connection=empty_queue, serializer="json")
    waiting = rqs.enqueue("pagemill.prompt", {"prompt": "waiting", "batch_id": "night"}).id
    delayed = rqs.enqueue_in(timedelta(hours=1), "pagemill.prompt", {"prompt": "delayed", "batch_id": "night"}).id
    others = [submit(run, "other", "--batch", "day"), rqs.enqueue("pagemill.prompt", {"prompt": "night"}).id]

    result = run("cancel", "--batch", "night", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"batch": "night", "jobs": {"cancelled_waiting": 4, "cancelling": 1}}
    assert canned_worker.queue.cancelling() == {running}
    states = store.states([done, running, backing_off, recorded, waiting, delayed, *others])
    cancelled = dict.fromkeys([backing_off, recorded, waiting, delayed], JobState.CANCELLED)
    assert states == {done: JobState.DONE, running: JobState.RUNNING, others[0]: JobState.QUEUED, **cancelled}
    assert sorted(claim.job_id for claim in canned_worker.claim()) == sorted(others)
    assert "its worker is ending it" in run("cancel", "--batch", "night").stdout


def test_batch_of_many_jobs_is_cancelled_in_chunks(run: Run, empty_queue: redis.Redis, store: JobStore) -> None:
    lines = "".join(f'"prompt {number}"\n' for number in range(1201))
    assert run("submit", "--jsonl", "-", "--batch", "night", stdin=lines).exit_code == 0
    result = run("cancel", "--batch", "night", "--json")
    assert json.loads(result.stdout)["jobs"] == {"cancelled_waiting": 1201}
    assert empty_queue.llen("rq:queue:default") == 0
    progress = store.batch("night")
    assert progress is not None
    assert progress.states == {JobState.CANCELLED: 1201}


def test_unknown_batch_and_no_choice_are_errors(run: Run) -> None:
    unknown = run("cancel", "--batch", "absent")
    assert (unknown.exit_code, unknown.stderr) == (2, "error: no batch absent in the database or in the queues\n")
    assert run("cancel").exit_code == 2
    assert run("cancel", "0" * 32, "--batch", "night").exit_code == 2


def test_job_that_redis_lost_is_cancelled_in_sql(run: Run, empty_queue: redis.Redis, store: JobStore) -> None:
    job_id = submit(run, "hello")
    empty_queue.flushdb()
    assert run("cancel", job_id).exit_code == 0
    assert store.states([job_id]) == {job_id: JobState.CANCELLED}


def test_job_whose_worker_died_is_cancelled_in_sql_too(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis, store: JobStore
) -> None:
    job_id = submit(run, "hello")
    (claim,) = canned_worker.claim()
    empty_queue.zadd("pagemill:leases:default", {f"{job_id}:{claim.execution_id}": 1.0})
    canned_worker.queue.sweep(["default"])
    assert store.states([job_id]) == {job_id: JobState.RUNNING}
    assert run("cancel", job_id).exit_code == 0
    detail = store.job(job_id)
    assert detail is not None
    assert detail.state is JobState.CANCELLED
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.LOST]
    canned_worker.end(claim, "too late")  # the worker was only cut off
    assert store.states([job_id]) == {job_id: JobState.CANCELLED}
    assert store.results([job_id]) == {}


def test_job_in_a_long_queue_is_cancelled_without_a_search(
    run: Run, canned_worker: CannedWorker, empty_queue: redis.Redis, store: JobStore
) -> None:
    job_id = submit(run, "hello")
    empty_queue.rpush("rq:queue:default", *(f"gone-{number}" for number in range(10_000)))
    assert run("cancel", job_id).exit_code == 0
    assert store.states([job_id]) == {job_id: JobState.CANCELLED}
    last = submit(run, "last")
    claimed = [claim.job_id for _ in range(3) for claim in canned_worker.claim(1)]
    assert claimed == [last]
