"""Reconciling the queue with SQL: what Redis lost comes back, and nothing that it has is done twice."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from rq import Queue
from sqlalchemy import update

from tests.worker.reconciling.workers import begin, done, fall_silent, waiting
from worker.client import NewJob, enqueue, prepare
from worker.client import submit as submit_unrecorded
from worker.queue.access import QueueAccess
from worker.queue.crashes import CrashKind
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import DeadWorker, Suspects
from worker.reconciling import PAGE_JOBS, DryRun, Finding, RealRepairs, Reconciler
from worker.records import AttemptState, JobState
from worker.running.outcomes import acknowledgement
from worker.sql.database import open_database, writing
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore
from worker.sql.tables import JobRow


def test_a_wiped_queue_is_rebuilt_in_the_order_of_submission(
    connection: redis.Redis, submit: Any, reconcile: Any
) -> None:
    ids = submit(*(f"question {number}" for number in range(PAGE_JOBS + 20)))
    other = submit({"prompt": "x", "tenant": "acme"}, queue="bulk")
    before = {job_id: connection.hgetall(f"rq:job:{job_id}") for job_id in [ids[0], *other]}
    connection.flushdb()
    assert reconcile(DryRun()) == {Finding.REBUILT: len(ids) + 1}
    assert connection.keys() == []
    assert reconcile() == {Finding.REBUILT: len(ids) + 1}
    assert waiting(connection) == ids
    assert waiting(connection, "bulk") == other
    for job_id, record in before.items():
        assert {**connection.hgetall(f"rq:job:{job_id}"), b"result_ttl": b"86400"} == record
    assert reconcile() == {Finding.QUEUED: len(ids) + 1}
    assert waiting(connection) == ids


def test_what_the_queue_has_is_left_alone(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    ids = submit("held", "waits", "waits too")
    begin(connection, sqlite_store, "w", 1)
    before = {key: connection.dump(key) for key in connection.scan_iter()}
    assert reconcile() == {Finding.HELD: 1, Finding.QUEUED: 2}
    assert {key: connection.dump(key) for key in connection.scan_iter()} == before
    assert sqlite_store.states(ids) == dict(zip(ids, (JobState.RUNNING, JobState.QUEUED, JobState.QUEUED), strict=True))


def test_ended_jobs_stay_ended(connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any) -> None:
    submit("done")
    sqlite_store.finish_attempts([done(claim) for claim in begin(connection, sqlite_store, "w")])
    connection.flushdb()
    assert reconcile() == {}
    assert connection.keys() == []


def test_a_result_in_flight_is_waited_for(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    (claim,) = begin(connection, sqlite_store, "w")
    connection.flushdb()
    assert reconcile() == {Finding.IN_FLIGHT: 1}
    assert sqlite_store.finish_attempts([done(claim)]) == frozenset()
    assert sqlite_store.states([job_id]) == {job_id: JobState.DONE}
    assert reconcile() == {}


def test_a_running_job_whose_worker_is_gone_is_queued_again(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    (claim,) = begin(connection, sqlite_store, "w")
    connection.flushdb()
    fall_silent(sqlite_file, "w")
    assert reconcile() == {Finding.REBUILT: 1}
    job = sqlite_store.job(job_id)
    assert job is not None
    assert (job.state, [(a.state, a.error_code) for a in job.attempts]) == (
        JobState.QUEUED,
        [(AttemptState.LOST, "queue_lost")],
    )
    assert sqlite_store.finish_attempts([done(claim)]) == {job_id}, "it was not gone after all, and comes too late"
    (again,) = begin(connection, sqlite_store, "w2")
    assert again.epoch > claim.epoch
    assert sqlite_store.finish_attempts([done(again)]) == frozenset()


def test_a_worker_that_stopped_holds_nothing(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    submit("x")
    begin(connection, sqlite_store, "w")
    sqlite_store.stop_worker("w")
    connection.flushdb()
    assert reconcile() == {Finding.REBUILT: 1}


def test_an_epoch_of_a_clock_that_was_ahead_is_not_fallen_behind(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    ahead = (datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1e6
    connection.hset(f"rq:job:{job_id}", "pagemill_epoch", round(ahead))
    begin(connection, sqlite_store, "w")
    connection.flushdb()
    fall_silent(sqlite_file, "w")
    reconcile()
    (again,) = begin(connection, sqlite_store, "w2")
    assert again.epoch > ahead


def test_a_job_whose_deadline_passed_is_not_queued_again(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path, submit: Any, reconcile: Any
) -> None:
    late, early = submit("late", "early")
    database = open_database(f"sqlite:///{sqlite_file}")
    with writing(database) as sql:
        for job_id, hours in ((late, -1), (early, 1)):
            deadline = datetime.now(UTC) + timedelta(hours=hours)
            sql.execute(update(JobRow).where(JobRow.id == job_id).values(deadline_at=deadline))
    database.dispose()
    connection.flushdb()
    assert reconcile() == {Finding.EXPIRED: 1, Finding.REBUILT: 1}
    job = sqlite_store.job(late)
    assert job is not None
    assert (job.state, job.error_code) == (JobState.FAILED, "deadline_exceeded")
    assert waiting(connection) == [early]


def test_a_back_off_goes_on(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    retry_at = datetime.now(UTC) + timedelta(hours=1)
    database = open_database(f"sqlite:///{sqlite_file}")
    with writing(database) as sql:
        sql.execute(update(JobRow).values(retry_at=retry_at, retry_count=2))
    database.dispose()
    connection.flushdb()
    assert reconcile() == {Finding.REBUILT: 1}
    assert waiting(connection) == []
    assert connection.zscore("rq:scheduled:default", job_id) == pytest.approx(retry_at.timestamp())
    assert connection.hmget(f"rq:job:{job_id}", "status", "pagemill_retries") == [b"scheduled", b"2"]
    assert reconcile() == {Finding.QUEUED: 1}


def test_a_cancellation_that_sql_missed_is_made_up_for(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    QueueAccess(connection).cancel(job_id)
    assert reconcile() == {Finding.CANCELLED: 1}
    assert sqlite_store.states([job_id]) == {job_id: JobState.CANCELLED}


def test_a_payload_that_cannot_be_read_harms_no_other(
    connection: redis.Redis, sqlite_file: Path, submit: Any, reconcile: Any
) -> None:
    bad, good = submit("bad", "good")
    database = open_database(f"sqlite:///{sqlite_file}")
    with writing(database) as sql:
        sql.execute(update(JobRow).where(JobRow.id == bad).values(payload="{"))
    database.dispose()
    connection.flushdb()
    assert reconcile() == {Finding.UNREADABLE: 1, Finding.REBUILT: 1}
    assert waiting(connection) == [good]


def test_jobs_adrift_in_redis_are_put_back(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    unlisted, started, leased = submit("its id was lost", "nobody holds it", "held")
    (claim, *_) = JobQueue(connection, "w", 60.0).claim(["default"], 3).claims[::-1]
    for job_id in (unlisted, started):
        for key in (*connection.scan_iter(f"rq:execution:{job_id}:*"), f"rq:executions:{job_id}"):
            connection.delete(key)
        for zset in ("pagemill:leases:default", "rq:wip:default"):
            members: Any = connection.zrange(zset, 0, -1)
            connection.zrem(zset, *(member for member in members if member.startswith(job_id.encode())))
    connection.hset(f"rq:job:{unlisted}", "status", "queued")
    assert reconcile() == {Finding.HELD: 1, Finding.ADOPTED: 2}
    assert sorted(waiting(connection)) == sorted([unlisted, started])
    assert connection.hget(f"rq:job:{started}", "status") == b"queued"
    assert reconcile() == {Finding.HELD: 1, Finding.QUEUED: 2}
    assert claim.job_id == leased


def test_a_started_record_that_sql_never_saw_is_put_back(connection: redis.Redis, reconcile: Any) -> None:
    (job_id,) = submit_unrecorded(connection, ["x"])
    foreign = Queue("default", connection=connection, serializer="json").enqueue("other.function")
    connection.delete("rq:queue:default")
    for started in (job_id, foreign.id):
        connection.hset(f"rq:job:{started}", "status", "started")
    assert reconcile() == {Finding.ADOPTED: 1}
    assert waiting(connection) == [job_id]


def test_parked_and_suspected_jobs_are_where_they_should_be(
    connection: redis.Redis, submit: Any, reconcile: Any
) -> None:
    connection.hset("pagemill:limits", "acme", json.dumps({"max_running": 1}))
    submit(*({"prompt": "x", "tenant": "acme"} for _ in range(3)), "suspected")
    queue = JobQueue(connection, "w", 60.0)
    first, suspected = queue.claim(["default"], 4).claims
    dead = DeadWorker("w", CrashKind.DEATH, None, frozenset({suspected.execution_id}))
    Suspects(connection, "w2", 60.0).abandon(dead)
    assert connection.llen("pagemill:suspects:default") == 1
    before = {key: connection.dump(key) for key in connection.scan_iter()}
    assert reconcile(DryRun()) == {Finding.QUEUED: 4}
    assert reconcile() == {Finding.QUEUED: 4}
    assert {key: connection.dump(key) for key in connection.scan_iter()} == before
    assert first.job.tenant == "acme"


def test_a_producers_late_write_finds_its_jobs_rebuilt(
    connection: redis.Redis, sqlite_file: Path, reconcile: Any
) -> None:
    """The reconciler came between a producer's two writes."""
    jobs: Sequence[NewJob] = prepare(["one", "two"])
    with opened_recorder(f"sqlite:///{sqlite_file}") as recorder:
        list(enqueue(connection, jobs, recorder=recorder))
        connection.flushdb()
        reconcile()
        list(enqueue(connection, jobs, recorder=recorder))
    assert waiting(connection) == [job.job_id for job in jobs]


def test_two_at_once_queue_nothing_twice(connection: redis.Redis, sqlite_store: JobStore, submit: Any) -> None:
    ids = submit(*(f"question {number}" for number in range(PAGE_JOBS + 1)))
    connection.flushdb()
    reconciler = Reconciler(sqlite_store, connection, RealRepairs(sqlite_store, connection, 60))

    def another(seen: int, total: int) -> None:
        Reconciler(sqlite_store, connection, RealRepairs(sqlite_store, connection, 60)).run(
            lambda seen, total: None, lambda: False
        )

    findings = reconciler.run(another, lambda: False)
    assert Counter(waiting(connection)) == Counter(ids)
    assert (findings[Finding.REBUILT], findings[Finding.QUEUED]) == (PAGE_JOBS, 1)


def test_results_in_redis_follow_a_rebuilt_job(
    connection: redis.Redis, sqlite_store: JobStore, submit: Any, reconcile: Any
) -> None:
    (job_id,) = submit("x")
    connection.flushdb()
    reconcile()
    (claim,) = begin(connection, sqlite_store, "w")
    outcome = done(claim)
    sqlite_store.finish_attempts([outcome])
    assert JobQueue(connection, "w", 60.0).acknowledge([acknowledgement(outcome)]) == frozenset()
    job = Queue("default", connection=connection, serializer="json").fetch_job(job_id)
    assert job is not None
    assert json.loads(json.dumps(job.return_value()))["text"] == "yes"
