"""Dead-lettering, cancelling and retrying jobs, and looking them up. On both databases."""

from datetime import datetime

import pytest
from sqlalchemy import Engine

from tests.sql.begun import job_of
from tests.sql.builders import after, claim_of, dead_of, outcome_of, stats_of, submitted_of
from worker.records import AttemptState, JobState
from worker.sql.lookups import StateCount
from worker.sql.store import JobStore

NOW = after(500)


def now() -> datetime:
    return NOW


@pytest.fixture
def store(database: Engine) -> JobStore:
    return JobStore(database, clock=now)


def test_record_that_is_no_job_is_kept_raw(store: JobStore) -> None:
    record = dead_of("bad", enqueued_at=after(1))
    for _ in range(2):
        store.record_dead([record, dead_of("other", raw="\x00\ud800", queue="high"), record])
    job = job_of(store, "bad")
    assert (job.state, job.payload, job.ended_at, job.enqueued_at) == (JobState.DEAD, record.raw, NOW, after(1))
    assert (job.error_code, job.error_message) == (record.error_code, record.error_message)
    assert (job.tenant, job.attempts, job.attempt_count) == (None, (), 0)
    assert job_of(store, "other").payload == "\ufffd\ufffd"
    assert store.begin_attempts([claim_of("bad")], "w1").terminal == {"bad": JobState.DEAD}
    store.record_dead([])


def test_running_job_is_dead_lettered_with_its_attempt(store: JobStore) -> None:
    claim = claim_of("a", 3)
    store.begin_attempts([claim], "w1")
    store.record_dead([dead_of("a", error_code="crashed")])
    job = job_of(store, "a")
    assert (job.state, job.error_code, job.epoch, job.payload) == (JobState.DEAD, "crashed", 3, claim.payload_json)
    assert (job.attempts[0].state, job.attempts[0].error_code) == (AttemptState.LOST, "dead_lettered")
    assert store.finish_attempts([outcome_of(claim)]) == {"a"}
    assert job_of(store, "a").state is JobState.DEAD


def test_ended_job_is_not_dead_lettered(store: JobStore) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim)])
    before = store.job("a")
    store.record_dead([dead_of("a")])
    assert store.job("a") == before


def test_waiting_job_is_cancelled(store: JobStore) -> None:
    submitted = submitted_of("a", tenant="acme", batch_id="night", batch_size=2)
    for _ in range(2):
        assert store.record_cancelled([submitted]) == {"a"}
    job = job_of(store, "a")
    assert (job.state, job.ended_at, job.started_at, job.attempt_count) == (JobState.CANCELLED, NOW, None, 0)
    assert (job.tenant, job.batch_id, job.payload) == ("acme", "night", submitted.payload_json)
    assert store.begin_attempts([claim_of("a", 1)], "w1").terminal == {"a": JobState.CANCELLED}
    assert store.record_cancelled([]) == frozenset()


def test_only_waiting_jobs_are_cancelled(store: JobStore) -> None:
    running, done, handed_back = claim_of("running"), claim_of("done"), claim_of("handed-back")
    store.begin_attempts([running, done, handed_back], "w1")
    store.finish_attempts([outcome_of(done), outcome_of(handed_back, AttemptState.REQUEUED)])
    cancelled = store.record_cancelled([submitted_of("running"), submitted_of("done"), submitted_of("handed-back")])
    assert cancelled == {"handed-back"}
    assert store.states(["running", "done", "handed-back", "unknown"]) == {
        "running": JobState.RUNNING,
        "done": JobState.DONE,
        "handed-back": JobState.CANCELLED,
    }


def test_retry_puts_ended_jobs_back_without_output(store: JobStore) -> None:
    failed, cancelled, done, running = (claim_of(name) for name in ("failed", "cancelled", "done", "running"))
    store.begin_attempts([failed, cancelled, done, running], "w1")
    store.finish_attempts(
        [
            outcome_of(failed, AttemptState.FAILED, text="half", stats=stats_of()),
            outcome_of(cancelled, AttemptState.CANCELLED),
            outcome_of(done),
        ]
    )
    store.record_dead([dead_of("dead")])
    job_ids = ["failed", "cancelled", "done", "running", "dead", "unknown"]
    assert store.mark_retried(job_ids) == {"failed", "cancelled", "dead"}
    assert store.mark_retried(job_ids) == frozenset()
    job = job_of(store, "failed")
    assert (job.state, job.error_code, job.error_message, job.ended_at) == (JobState.QUEUED, None, None, None)
    assert (job.result, job.stats) == (None, None)
    assert [attempt.state for attempt in job.attempts] == [AttemptState.FAILED]
    assert store.results(job_ids).keys() == {"done"}

    again = claim_of("failed", 2)
    assert not store.begin_attempts([again, claim_of("dead", 2, tenant="acme")], "w2").terminal
    assert store.finish_attempts([outcome_of(again)]) == frozenset()
    job = job_of(store, "failed")
    assert (job.state, job.attempt_count, job.started_at) == (JobState.DONE, 2, failed.claimed_at)
    assert job.result is not None
    assert (job_of(store, "dead").tenant, job_of(store, "dead").state) == ("acme", JobState.RUNNING)


def test_retried_job_ignores_the_attempt_before(store: JobStore) -> None:
    claim = claim_of("a", 1)
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, AttemptState.FAILED)])
    store.mark_retried(["a"])
    assert store.begin_attempts([claim], "w1").stale == {"a"}
    assert store.finish_attempts([outcome_of(claim)]) == {"a"}
    assert job_of(store, "a").state is JobState.QUEUED


def test_counts_by_queue_and_state(store: JobStore) -> None:
    claims = [claim_of("a", queue="high"), claim_of("b", queue="low"), claim_of("c", queue="low")]
    store.begin_attempts(claims, "w1")
    store.finish_attempts([outcome_of(claims[1])])
    assert store.state_counts() == (
        StateCount("high", JobState.RUNNING, 1),
        StateCount("low", JobState.DONE, 1),
        StateCount("low", JobState.RUNNING, 1),
    )


def test_unknown_jobs_have_nothing(store: JobStore) -> None:
    assert store.job("unknown") is None
    assert store.states(["unknown"]) == {}
    assert store.results([]) == {}
    assert store.state_counts() == ()


def test_hostile_text_is_only_text(store: JobStore) -> None:
    hostile = "'; DROP TABLE jobs; --"
    claim = claim_of("a", custom_id=hostile)
    store.begin_attempts([claim], hostile)
    store.finish_attempts([outcome_of(claim, text=hostile)])
    assert store.states([hostile]) == {}
    assert (job_of(store, "a").custom_id, job_of(store, "a").attempts[0].worker_name) == (hostile, hostile)
