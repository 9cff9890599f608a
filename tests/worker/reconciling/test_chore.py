"""The worker's chore of reconciling: when it runs, how it rests, and what comes of it."""

from typing import Any

import pytest
import redis

from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running
from tests.worker.reconciling.workers import begin, waiting
from worker.reconciling import PAGE_JOBS, RealRepairs, Reconciler
from worker.records import JobState
from worker.running.reconcile_chore import MARKER_KEY, ReconcileChore
from worker.sql.store import JobStore


def test_the_chore_runs_once_a_period_and_after_a_wipe(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def chore() -> ReconcileChore:
        reconciler = Reconciler(sqlite_store, connection, RealRepairs(sqlite_store, connection, 60))
        return ReconcileChore(reconciler, connection, 300.0, lambda: False)

    one, other = chore(), chore()
    (job_id,) = submit("x")
    one.run()
    connection.delete("rq:queue:default", f"rq:job:{job_id}")
    other.run()
    assert waiting(connection) == [], "it is not time yet"
    assert 200 < int(connection.ttl(MARKER_KEY)) <= 300
    connection.set(MARKER_KEY, "another server's run id", ex=300)
    other.run()
    assert waiting(connection) == [job_id]
    assert "1 rebuilt" in caplog.text
    connection.flushdb()
    one.run()
    assert waiting(connection) == [job_id]


def test_the_chore_looks_again_soon_where_a_worker_may_be_dead(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any
) -> None:
    submit("x")
    begin(connection, sqlite_store, "w")
    connection.flushdb()
    reconciler = Reconciler(sqlite_store, connection, RealRepairs(sqlite_store, connection, 60))
    ReconcileChore(reconciler, connection, 300.0, lambda: False).run()
    assert int(connection.ttl(MARKER_KEY)) <= 60


def test_a_worker_rebuilds_a_wiped_queue_and_finishes_what_it_held(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any
) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    held = submit({"prompt": f"{ENDLESS} held", "max_tokens": 3})
    fast: dict[str, Any] = {"beat_seconds": 0.1, "sweep_seconds": 0.1, "max_jobs": 1}
    with running(make_flow(connection, sqlite_store, runner, **fast)) as worker:
        eventually(lambda: sqlite_store.states(held) == {held[0]: JobState.RUNNING})
        more = submit("one", "two")
        eventually(lambda: connection.exists(MARKER_KEY))
        connection.flushdb()
        eventually(lambda: waiting(connection) == more)
        runner.may_step.set()
        eventually(lambda: set(sqlite_store.states([*held, *more]).values()) == {JobState.DONE})
        worker.stop()
    assert all(count == 1 for count in runner.generations.values())


def test_it_rests_only_where_nothing_is_amiss(connection: redis.Redis, sqlite_store: JobStore, submit: Any) -> None:
    ids = submit(*(f"question {number}" for number in range(2 * PAGE_JOBS)))
    connection.delete(f"rq:job:{ids[0]}")
    repairs = RealRepairs(sqlite_store, connection, 60)

    def events_of_a_round() -> list[str]:
        events: list[str] = []
        reconciler = Reconciler(sqlite_store, connection, repairs, lambda seconds: events.append("rest"))
        reconciler.run(lambda seen, total: events.append("page"), lambda: False)
        return events

    assert events_of_a_round()[:3] == ["page", "page", "rest"]
    assert events_of_a_round()[:4] == ["page", "rest", "page", "rest"]


def test_a_burst_rebuilds_the_queue_first(connection: redis.Redis, sqlite_store: JobStore, submit: Any) -> None:
    ids = submit("one", "two")
    connection.flushdb()
    make_flow(connection, sqlite_store).run(burst=True)
    assert sqlite_store.states(ids) == dict.fromkeys(ids, JobState.DONE)
