"""Jobs that have not ended: reading them in pages, and moving on those that the queue lost, on both databases."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.sql.builders import START, after, claim_of, outcome_of, worker_of
from worker.jobs import dump_job
from worker.queue.submission import QueueRecord
from worker.records import AttemptState, JobState
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore
from worker.sql.unfinished import UnfinishedJob, UnfinishedJobs

LATE = after(3600)


@pytest.fixture
def record(database_url: str) -> Callable[[dict[str, float]], None]:
    """Record jobs, each enqueued so many seconds after START."""

    def record(jobs: dict[str, float]) -> None:
        with opened_recorder(database_url) as recorder:
            claims = [claim_of(job_id) for job_id in jobs]
            recorder.record(
                "default",
                [QueueRecord(c.job_id, dump_job(c.job), c.payload_json, after(jobs[c.job_id])) for c in claims],
            )

    return record


def read_all(store: JobStore, limit: int) -> Iterable[UnfinishedJob]:
    last = None
    while page := store.unfinished(last, LATE, limit):
        assert len(page) <= limit
        yield from page
        last = page[-1]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_pages_come_in_the_order_of_submission(store: JobStore, record: Callable[..., None], limit: int) -> None:
    record({"d": 0.5, "a": 2, "c": 1, "b": 1, "e": 1})
    assert [job.job_id for job in read_all(store, limit)] == ["d", "b", "c", "e", "a"]
    assert store.count_unfinished() == UnfinishedJobs(5, after(2))
    assert [job.job_id for job in store.unfinished(None, after(1), 100)] == ["d", "b", "c", "e"]


def test_ended_jobs_are_not_read(store: JobStore, record: Callable[..., None]) -> None:
    assert store.count_unfinished() == UnfinishedJobs(0, None)
    record({"a": 0, "b": 1})
    claim = claim_of("a")
    store.begin_attempts([claim], "w")
    store.finish_attempts([outcome_of(claim)])
    (job,) = read_all(store, 10)
    assert (job.job_id, job.state, job.epoch, job.enqueued_at) == ("b", JobState.QUEUED, 0, after(1))


def test_the_holder_is_the_worker_of_the_running_attempt(store: JobStore, record: Callable[..., None]) -> None:
    for name, at_s in (("first", 5), ("second", 7)):
        store.register_worker(replace(worker_of(name), started_at=after(at_s)))
    record({"a": 0})
    store.begin_attempts([claim_of("a", 1)], "first")
    store.begin_attempts([claim_of("a", 2)], "second")
    (job,) = read_all(store, 10)
    assert (job.epoch, job.holder_seen_at) == (2, after(7))
    store.stop_worker("second")
    (job,) = read_all(store, 10)
    assert job.holder_seen_at is None


def test_a_lost_attempt_is_over_and_comes_too_late(store: JobStore, record: Callable[..., None]) -> None:
    record({"a": 0})
    claim = claim_of("a", 5)
    store.begin_attempts([claim], "w")
    assert store.requeue_lost(tuple(read_all(store, 10))) == {"a"}
    job = store.job("a")
    assert job is not None
    assert (job.state, job.epoch, job.enqueued_at) == (JobState.QUEUED, 5, START)
    assert [(attempt.state, attempt.error_code) for attempt in job.attempts] == [(AttemptState.LOST, "queue_lost")]
    assert store.finish_attempts([outcome_of(claim)]) == {"a"}


@pytest.mark.parametrize("change", ["requeue_lost", "expire_lost", "cancel_lost"])
def test_what_went_on_since_it_was_read_stays(store: JobStore, record: Callable[..., None], change: str) -> None:
    record({"claimed": 0, "claimed again": 1, "done": 2})
    store.begin_attempts([claim_of("claimed again", 1), claim_of("done", 1)], "w")
    as_read = tuple(read_all(store, 10))
    store.begin_attempts([claim_of("claimed", 1), claim_of("claimed again", 2)], "w")
    store.finish_attempts([outcome_of(claim_of("done", 1))])
    before = [store.job(job.job_id) for job in as_read]
    assert getattr(store, change)(as_read) == frozenset()
    assert [store.job(job.job_id) for job in as_read] == before


def test_lost_jobs_can_end(store: JobStore, record: Callable[..., None]) -> None:
    record({"late": 0, "unwanted": 1})
    late, unwanted = read_all(store, 10)
    assert store.expire_lost([late]) == {"late"}
    assert store.cancel_lost([unwanted]) == {"unwanted"}
    assert store.expire_lost([late]) == frozenset(), "once"
    job = store.job("late")
    assert job is not None
    assert (job.state, job.error_code) == (JobState.FAILED, "deadline_exceeded")
    assert job.ended_at is not None
    assert store.states(["unwanted"]) == {"unwanted": JobState.CANCELLED}
