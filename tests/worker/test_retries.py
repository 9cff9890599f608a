"""Retries through a whole worker: what the class of an error does to its job, in SQL and in Redis."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.registry import ScheduledJobRegistry

from scripts.fault_table.proxy import Proxy, lose_reply_to
from tests.sql.begun import attempt_states, job_of
from tests.worker.fakes import answer, decode, eventually, make_flow, running
from worker.client import submit
from worker.errors import TryLater
from worker.queue.access import CancelOutcome, QueueAccess
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

FOREVER: dict[str, Any] = {"retry_base_seconds": 3600.0, "retry_cap_seconds": 3600.0}


class Fragile:
    """A detokenizer that fails on the outputs of prompts which hold "bad", the first `failures` times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def __call__(self, token_ids: Sequence[int]) -> str:
        text = decode(token_ids)
        if self.failures and text.startswith("<bad"):
            self.failures -= 1
            raise UnicodeError("of the tokenizer")
        return text


def rq_status(connection: redis.Redis, job_id: str) -> JobStatus:
    return Job.fetch(job_id, connection=connection, serializer="json").get_status()


def test_transient_error_is_retried_until_it_passes(connection: redis.Redis, sqlite_store: JobStore) -> None:
    bad, good = submit(connection, ["bad", "good"])
    make_flow(connection, sqlite_store, decode=Fragile(2)).run(burst=True)
    detail = job_of(sqlite_store, bad)
    assert attempt_states(sqlite_store, bad) == [AttemptState.FAILED, AttemptState.FAILED, AttemptState.DONE]
    assert [attempt.error_code for attempt in detail.attempts] == ["internal_error", "internal_error", None]
    assert (detail.state, detail.attempt_count, detail.retry_count) == (JobState.DONE, 3, 2)
    assert (detail.error_code, detail.retry_at) == (None, None)
    assert detail.result is not None
    assert detail.result.text == answer("bad")
    assert detail.stats is not None
    assert attempt_states(sqlite_store, good) == [AttemptState.DONE]
    assert rq_status(connection, bad) is JobStatus.FINISHED


@pytest.mark.parametrize(("max_retries", "num_attempts"), [(None, 3), (0, 1), (1, 2)])
def test_transient_error_that_stays_fails_the_job(
    connection: redis.Redis, sqlite_store: JobStore, max_retries: int | None, num_attempts: int
) -> None:
    job = {"prompt": "bad"} if max_retries is None else {"prompt": "bad", "max_retries": max_retries}
    (job_id,) = submit(connection, [job])
    flow = make_flow(connection, sqlite_store, decode=Fragile(99))
    flow.run(burst=True)
    assert attempt_states(sqlite_store, job_id) == [AttemptState.FAILED] * num_attempts
    detail = job_of(sqlite_store, job_id)
    assert (detail.state, detail.error_code, detail.retry_at) == (JobState.FAILED, "internal_error", None)
    assert rq_status(connection, job_id) is JobStatus.FAILED
    assert flow.progress().jobs_failed == 1


def test_permanent_error_fails_the_job_at_once(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": "x", "max_tokens": 100_000, "max_retries": 20}])
    make_flow(connection, sqlite_store).run(burst=True)
    assert attempt_states(sqlite_store, job_id) == [AttemptState.FAILED]
    assert job_of(sqlite_store, job_id).error_code == "context_length"


def test_rqs_retry_is_honoured(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer="json")
    job = queue.enqueue("pagemill.prompt", {"prompt": "bad"}, retry=Retry(max=4, interval=[0, 0]))
    # Its intervals hold, not the worker's back-off.
    make_flow(connection, sqlite_store, decode=Fragile(99), **FOREVER).run(burst=True)
    assert attempt_states(sqlite_store, job.id) == [AttemptState.FAILED] * 5
    job.refresh()
    assert (job.get_status(), job.retries_left) == (JobStatus.FAILED, 0)


def test_back_off_shows_in_sql_and_in_rqs_registry(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, ["bad"])
    with running(make_flow(connection, sqlite_store, decode=Fragile(99), **FOREVER)) as worker:
        eventually(lambda: connection.zcard("rq:scheduled:default"))
        eventually(lambda: not worker.flow.progress().held)
        worker.stop()
    detail = job_of(sqlite_store, job_id)
    assert (detail.state, detail.retry_count, detail.error_code) == (JobState.QUEUED, 1, "internal_error")
    assert detail.ended_at is None
    assert detail.retry_at is not None
    assert detail.attempts[0].ended_at is not None
    assert timedelta(0) <= detail.retry_at - detail.attempts[0].ended_at <= timedelta(hours=1)
    due_at = ScheduledJobRegistry("default", connection=connection).get_scheduled_time(job_id)
    assert abs(due_at - detail.retry_at) < timedelta(milliseconds=1)


def test_lost_reply_to_a_delay_spends_one_retry(
    connection: redis.Redis, proxied: redis.Redis, proxy: Proxy, sqlite_store: JobStore
) -> None:
    (job_id,) = submit(connection, ["bad"])
    lose_reply_to(proxy, connection, "delay")
    make_flow(proxied, sqlite_store, decode=Fragile(1)).run(burst=True)
    assert attempt_states(sqlite_store, job_id) == [AttemptState.FAILED, AttemptState.DONE]
    assert job_of(sqlite_store, job_id).retry_count == 1
    assert not proxy.lose_replies_to


def test_crash_between_commit_and_delay_keeps_the_count(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """The next worker gets the job before its time: it runs, and what it has spent stays spent."""
    (job_id,) = submit(connection, [{"prompt": "bad", "max_retries": 1}])
    crashing = make_flow(
        connection, sqlite_store, decode=Fragile(1), failpoints="after_commit=raise@1-", drain_seconds=0.0, **FOREVER
    )
    with pytest.raises(TryLater):
        crashing.run(burst=True)
    detail = job_of(sqlite_store, job_id)
    assert (detail.state, detail.retry_count) == (JobState.QUEUED, 1)
    make_flow(connection, sqlite_store, name="worker-2", decode=Fragile(99)).run(burst=True)
    detail = job_of(sqlite_store, job_id)
    assert attempt_states(sqlite_store, job_id) == [AttemptState.FAILED, AttemptState.FAILED]
    assert (detail.state, detail.retry_count) == (JobState.FAILED, 1)


def test_job_that_is_cancelled_while_it_fails_does_not_wait_out_its_back_off(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    (job_id,) = submit(connection, ["bad"])

    def cancelled_meanwhile(token_ids: Sequence[int]) -> str:
        if token_ids:
            assert QueueAccess(connection).cancel(job_id).outcome is CancelOutcome.CANCELLING
            raise UnicodeError("of the tokenizer")
        return decode(token_ids)

    make_flow(connection, sqlite_store, decode=cancelled_meanwhile, **FOREVER).run(burst=True)
    detail = job_of(sqlite_store, job_id)
    assert (detail.state, detail.retry_at) == (JobState.CANCELLED, None)
    assert rq_status(connection, job_id) is JobStatus.CANCELED
    # Its worker may have heard of the request just before the error, or have not.
    assert attempt_states(sqlite_store, job_id) in ([AttemptState.FAILED], [AttemptState.CANCELLED])
    assert connection.zcard("rq:scheduled:default") == 0
