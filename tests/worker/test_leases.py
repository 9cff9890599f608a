"""Leases: renewed while a job is held, and what happens where one is gone all the same."""

from typing import Any

import pytest
import redis
from rq.job import Job, JobStatus
from rq.suspension import suspend

from tests.worker.fakes import ENDLESS, ScriptedRunner, answer, eventually, make_flow, running
from worker.client import submit
from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

LEASES = "pagemill:leases:default"
LONG = {"max_tokens": 2000}


def leases(connection: redis.Redis) -> dict[bytes, float]:
    """Return the ends of all leases, in seconds."""
    members: Any = connection.zrange(LEASES, 0, -1, withscores=True)
    return dict(members)


def lease_end(connection: redis.Redis) -> float:
    """Return when the last lease ends; 0 where there is none."""
    return max(leases(connection).values(), default=0.0)


def expire_leases(connection: redis.Redis) -> None:
    """Let all leases run out now."""
    connection.zadd(LEASES, dict.fromkeys(leases(connection), 1.0))


def attempts_of(store: JobStore, job_id: str) -> list[tuple[str, AttemptState, str | None]]:
    detail = store.job(job_id)
    assert detail is not None
    return [(attempt.worker_name, attempt.state, attempt.error_code) for attempt in detail.attempts]


def test_beats_extend_leases_to_the_end_of_the_drain(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    flow = make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.001), beat_seconds=0.05)
    with running(flow) as worker:
        eventually(lambda: lease_end(connection))
        first = lease_end(connection)
        eventually(lambda: lease_end(connection) > first)
        flow.worker.stopping.set()
        then = lease_end(connection)
        eventually(lambda: lease_end(connection) > then + 0.2)
        worker.stop_at_once()
    assert attempts_of(sqlite_store, job_id) == [("worker-1", AttemptState.REQUEUED, None)]


def test_own_leases_that_ran_out_are_renewed_before_any_are_swept(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    """As after a pause of the whole process, longer than its leases."""
    (job_id,) = submit(connection, [{"prompt": ENDLESS, **LONG}])
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=10.0, sweep_seconds=0.05)
    with running(flow, burst=True) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        expire_leases(connection)
        worker.wait()
    assert runner.generations[ENDLESS] == 1
    assert attempts_of(sqlite_store, job_id) == [("worker-1", AttemptState.DONE, None)]


def test_job_taken_over_by_another_worker_is_fenced(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, **LONG}])
    slow, fast = ScriptedRunner(), ScriptedRunner()
    first = make_flow(connection, sqlite_store, slow, sweep_seconds=60.0)
    with running(first) as loser:
        eventually(lambda: slow.generations[ENDLESS])
        slow.may_step.clear()
        expire_leases(connection)
        make_flow(connection, sqlite_store, fast, name="worker-2").run(burst=True)
        slow.may_step.set()  # it goes on as if nothing had happened
        eventually(lambda: not len(first._held))
        loser.stop()
    assert attempts_of(sqlite_store, job_id) == [
        ("worker-1", AttemptState.LOST, "fenced"),
        ("worker-2", AttemptState.DONE, None),
    ]
    assert len(sqlite_store.results([job_id])) == 1
    assert connection.zcard("rq:finished:default") == 1
    assert first.progress().jobs_done == 0


def test_running_job_whose_lease_is_gone_is_given_up_and_not_cancelled(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05, max_jobs=1)
    with running(flow) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        suspend(connection)  # so that nobody claims
        expire_leases(connection)
        JobQueue(connection, "sweeper", 30.0).sweep(["default"])
        eventually(lambda: not len(flow._held))
        assert connection.hget(f"rq:job:{job_id}", "pagemill_crashes") is None  # it takes the suspicion back
        assert sqlite_store.states([job_id]) == {job_id: JobState.QUEUED}
        assert attempts_of(sqlite_store, job_id) == [("worker-1", AttemptState.LOST, "lease_lost")]
        worker.stop()
    assert connection.lrange("rq:queue:default", 0, -1) == [job_id.encode()]


def test_worker_claims_a_job_again_while_it_still_holds_it(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """Its lease ran out and was swept; it takes the suspicion back, and is the first to claim the job: the earlier
    request is in nobody's way."""
    (job_id,) = submit(connection, [{"prompt": ENDLESS, **LONG}])
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=60.0)
    with running(flow) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        expire_leases(connection)
        JobQueue(connection, "sweeper", 30.0).sweep(["default"])
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.DONE)
        worker.stop()
    assert runner.generations[ENDLESS] == 2
    assert attempts_of(sqlite_store, job_id) == [
        ("worker-1", AttemptState.LOST, "lease_lost"),
        ("worker-1", AttemptState.DONE, None),
    ]
    assert sqlite_store.results([job_id])[job_id].completion_tokens == 2000


def test_results_in_flight_survive_a_wiped_queue(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, [{"prompt": f"{ENDLESS} {number}", **LONG} for number in range(3)])
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05)
    with running(flow) as worker:
        eventually(lambda: len(runner.generations) == 3)
        connection.flushdb()
        (later,) = submit(connection, ["later"])
        eventually(lambda: set(sqlite_store.states([*ids, later]).values()) == {JobState.DONE})
        worker.stop()
    assert sqlite_store.results([later])[later].text == answer("later")


def test_acknowledged_job_is_not_taken_for_a_lost_one(
    connection: redis.Redis, sqlite_store: JobStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Beats at every moment of a job's end."""
    ids = submit(connection, [f"job {number}" for number in range(100)])
    flow = make_flow(connection, sqlite_store, beat_seconds=0.001, max_jobs=8)
    flow.run(burst=True)
    assert [attempts_of(sqlite_store, job_id) for job_id in ids] == [[("worker-1", AttemptState.DONE, None)]] * 100
    statuses = {Job.fetch(job_id, connection=connection, serializer="json").get_status() for job_id in ids}
    assert statuses == {JobStatus.FINISHED}
    assert "lease" not in caplog.text
