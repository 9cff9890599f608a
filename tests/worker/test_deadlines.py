"""Deadlines in each phase of a job's life."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from rq import Queue
from rq.job import Job, JobStatus

from engine.config import EngineConfig
from tests.sql.builders import after, claim_of
from tests.worker.fakes import ENDLESS, ScriptedRunner, decode, eventually, make_flow, running
from worker.client import ends, submit
from worker.records import AttemptState, JobState
from worker.running.held import HeldJob
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

PAST = "2001-02-03T04:05:06+00:00"


def from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def endless(name: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": f"{ENDLESS} {name}", "max_tokens": 15_000, **fields}


def expired_job(store: JobStore, job_id: str) -> JobDetail:
    """Return a job that has ended by its deadline."""
    eventually(lambda: store.states([job_id]).get(job_id) is JobState.FAILED)
    detail = store.job(job_id)
    assert detail is not None
    assert detail.error_code == "deadline_exceeded"
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.FAILED]
    assert detail.attempts[0].error_code == "deadline_exceeded"
    return detail


def test_job_that_is_claimed_too_late_never_sees_the_engine(connection: redis.Redis, sqlite_store: JobStore) -> None:
    late, good = submit(connection, [{"prompt": "late", "deadline": PAST, "max_retries": 9}, "good"])
    runner = ScriptedRunner()
    make_flow(connection, sqlite_store, runner).run(burst=True)
    detail = expired_job(sqlite_store, late)
    assert detail.deadline_at == datetime.fromisoformat(PAST)
    assert detail.error_message == "the deadline 2001-02-03 04:05:06 UTC passed before its first token"
    assert detail.result is None
    assert dict(runner.generations) == {"good": 1}
    assert sqlite_store.states([good]) == {good: JobState.DONE}
    assert Job.fetch(late, connection=connection, serializer="json").get_status() is JobStatus.FAILED
    (end,) = ends(connection, [late], timeout_seconds=10)
    assert (end.error or "").startswith("deadline_exceeded: ")


def test_running_job_is_stopped_and_keeps_its_output(connection: redis.Redis, sqlite_store: JobStore) -> None:
    runner = ScriptedRunner(step_seconds=0.001)
    timed, other = submit(connection, [endless("timed", deadline=from_now(1.0)), endless("other")])
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        detail = expired_job(sqlite_store, timed)
        assert sqlite_store.states([other]) == {other: JobState.RUNNING}
        worker.stop_at_once()
    assert detail.result is not None
    assert detail.result.finish_reason == "deadline"
    assert 0 < detail.result.completion_tokens < 15_000
    assert detail.result.text == ("0123456789" * 1500)[: detail.result.completion_tokens]
    assert detail.stats is not None
    assert (detail.error_message or "").endswith(f"passed after {detail.result.completion_tokens} tokens")


def test_job_that_waits_within_the_engine_is_ended(connection: redis.Redis, sqlite_store: JobStore) -> None:
    one_at_a_time = EngineConfig(num_blocks=4096, max_model_len=16_384, block_size=16, max_num_seqs=1, token_budget=64)
    runner = ScriptedRunner(step_seconds=0.001)
    first, waiting = submit(connection, [endless("first"), endless("waiting", deadline=from_now(1.0))])
    with running(make_flow(connection, sqlite_store, runner, config=one_at_a_time)) as worker:
        detail = expired_job(sqlite_store, waiting)
        assert sqlite_store.states([first]) == {first: JobState.RUNNING}
        worker.stop_at_once()
    assert detail.result is None or detail.result.completion_tokens == 0
    assert dict(runner.generations) == {f"{ENDLESS} first": 1}


def test_job_in_time_is_done(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": "hello", "deadline": from_now(600)}])
    make_flow(connection, sqlite_store).run(burst=True)
    assert sqlite_store.states([job_id]) == {job_id: JobState.DONE}


def test_retry_that_would_come_too_late_is_not_waited_for(connection: redis.Redis, sqlite_store: JobStore) -> None:
    def broken(token_ids: Sequence[int]) -> str:
        if token_ids:
            raise UnicodeError
        return decode(token_ids)

    (job_id,) = submit(connection, [{"prompt": "hello", "deadline": from_now(30)}])
    flow = make_flow(connection, sqlite_store, decode=broken, retry_base_seconds=3600.0, retry_cap_seconds=86_400.0)
    flow._outcomes._backoff._draw = lambda: 1.0
    flow.run(burst=True)
    detail = sqlite_store.job(job_id)
    assert detail is not None
    assert (detail.state, detail.error_code, len(detail.attempts)) == (JobState.FAILED, "internal_error", 1)


def test_delayed_job_expires_when_its_time_comes(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    job = queue.enqueue_in(timedelta(seconds=-1), "pagemill.prompt", {"prompt": "hello", "deadline": PAST})
    make_flow(connection, sqlite_store).run(burst=True)
    expired_job(sqlite_store, job.id)


def test_rqs_time_to_live_ends_a_job_without_a_trace(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    job = queue.enqueue("pagemill.prompt", {"prompt": "hello"}, ttl=1)
    eventually(lambda: not connection.exists(job.key))
    make_flow(connection, sqlite_store).run(burst=True)
    assert sqlite_store.states([job.id]) == {}
    assert queue.job_ids == []


def test_deadline_is_on_rediss_clock_whatever_the_local_one_says() -> None:
    held = HeldJob(claim_of("a", at_s=10.0, deadline=after(25.0)), claimed_at=1000.0)
    assert held.deadline == 1015.0
    must_end = []
    for now in (1014.9, 1015.0, 1000.0):
        held.check_deadline(now)
        must_end.append(held.must_end)
    assert must_end == [False, True, True]
    assert HeldJob(claim_of("a"), claimed_at=1000.0).deadline is None


def test_rqs_time_out_is_a_deadline_from_the_claim(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    timed = queue.enqueue("pagemill.prompt", endless("timed"), job_timeout=1)
    free = queue.enqueue("pagemill.prompt", endless("free"), job_timeout=-1)
    with running(make_flow(connection, sqlite_store, ScriptedRunner(step_seconds=0.001))) as worker:
        detail = expired_job(sqlite_store, timed.id)
        assert sqlite_store.states([free.id]) == {free.id: JobState.RUNNING}
        worker.stop_at_once()
    assert detail.result is not None
    assert detail.error_message == (
        f"RQ's time-out of 1 s from the claim passed after {detail.result.completion_tokens} tokens"
    )
    assert detail.deadline_at is None, "the next attempt has the same time"
    assert timed.get_status() is JobStatus.FAILED


def test_earlier_one_of_deadline_and_time_out_counts() -> None:
    for deadline, timeout, expected in ((25.0, 60.0, 25.0), (25.0, 5.0, 15.0), (25.0, None, 25.0), (None, 5.0, 15.0)):
        fields: dict[str, Any] = {} if deadline is None else {"deadline": after(deadline)}
        claim = replace(claim_of("a", at_s=10.0, **fields), timeout_seconds=timeout)
        assert claim.deadline == after(expected)
