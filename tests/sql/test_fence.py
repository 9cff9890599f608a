"""Attempts of several workers at one job: the fence, repeats, double delivery, threads. On both databases."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine, func, select

from tests.sql.begun import NONE_REFUSED, attempt_states, job_of, refused
from tests.sql.builders import after, claim_of, outcome_of
from worker.records import AttemptState, JobState, Outcome, Retry
from worker.sql.attempts import BegunAttempts
from worker.sql.database import reading
from worker.sql.store import JobStore
from worker.sql.tables import AttemptRow, JobRow, JobStatsRow, ResultRow


def test_later_claim_loses_the_running_attempt(store: JobStore) -> None:
    store.begin_attempts([claim_of("a", 1)], "w1")
    later = claim_of("a", 2, at_s=60.0)
    assert refused(store.begin_attempts([later], "w2")) == NONE_REFUSED
    first, second = job_of(store, "a").attempts
    assert (first.state, first.ended_at, first.error_code) == (AttemptState.LOST, later.claimed_at, "lease_lost")
    assert (second.state, second.worker_name) == (AttemptState.RUNNING, "w2")


def test_fenced_outcome_changes_only_its_own_attempt(store: JobStore) -> None:
    old, new = claim_of("a", 1), claim_of("a", 2, at_s=60.0)
    store.begin_attempts([old], "w1")
    store.begin_attempts([new], "w2")
    late = outcome_of(old, text="from the worker that was cut off", at_s=90.0)
    for _ in range(2):  # a repeat is fenced again, and changes nothing
        assert store.finish_attempts([late]) == {"a"}
        job = job_of(store, "a")
        assert (job.state, job.epoch, job.result, job.stats) == (JobState.RUNNING, 2, None, None)
        assert (job.attempts[0].state, job.attempts[0].error_code) == (AttemptState.LOST, "fenced")
        assert (job.attempts[0].ended_at, job.attempts[1].state) == (late.ended_at, AttemptState.RUNNING)
    assert store.finish_attempts([outcome_of(new, text="from its successor")]) == frozenset()
    assert store.finish_attempts([late]) == {"a"}
    assert store.results(["a"])["a"].text == "from its successor"
    assert attempt_states(store, "a") == [AttemptState.LOST, AttemptState.DONE]


def test_outcome_of_an_attempt_that_never_began_is_fenced(store: JobStore) -> None:
    store.begin_attempts([claim_of("a", 5)], "w1")
    assert store.finish_attempts([outcome_of(claim_of("a", 4)), outcome_of(claim_of("unknown"))]) == {"a", "unknown"}
    assert job_of(store, "a").state is JobState.RUNNING
    assert store.job("unknown") is None


def test_outcome_after_another_end_is_fenced(store: JobStore) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, AttemptState.CANCELLED)])
    assert store.finish_attempts([outcome_of(claim, AttemptState.DONE)]) == {"a"}
    job = job_of(store, "a")
    assert (job.state, job.result, job.attempts[0].state) == (JobState.CANCELLED, None, AttemptState.CANCELLED)


@pytest.mark.parametrize(
    "ended", [AttemptState.DONE, AttemptState.FAILED, AttemptState.CANCELLED, AttemptState.REQUEUED]
)
def test_repeated_outcome_changes_nothing_and_is_not_fenced(store: JobStore, ended: AttemptState) -> None:
    claim = claim_of("a")
    outcome = outcome_of(claim, ended)
    store.begin_attempts([claim], "w1")
    assert store.finish_attempts([outcome, outcome]) == frozenset()
    before = store.job("a")
    assert store.finish_attempts([replace(outcome, ended_at=after(999))]) == frozenset()
    assert store.job("a") == before


def test_repeated_requeue_leaves_the_next_attempt_alone(store: JobStore) -> None:
    first, second = claim_of("a", 1), claim_of("a", 2)
    requeued = outcome_of(first, AttemptState.REQUEUED)
    store.begin_attempts([first], "w1")
    store.finish_attempts([requeued])
    store.begin_attempts([second], "w2")
    before = store.job("a")
    assert store.finish_attempts([requeued]) == frozenset()
    assert store.job("a") == before


def test_job_held_twice_by_one_worker_is_not_fenced(store: JobStore) -> None:
    old, new = claim_of("a", 1), claim_of("a", 2)
    store.begin_attempts([old], "w1")
    store.begin_attempts([new], "w1")
    assert store.finish_attempts([outcome_of(new), outcome_of(old, text="old")]) == frozenset()
    assert attempt_states(store, "a") == [AttemptState.LOST, AttemptState.DONE]
    assert store.results(["a"])["a"].text == "It is what it is."


def test_late_retry_is_fenced(store: JobStore) -> None:
    first, second = claim_of("a", 1), claim_of("a", 2)
    store.begin_attempts([first], "w1")
    store.begin_attempts([second], "w2")
    late = replace(outcome_of(first, AttemptState.FAILED), retry=Retry(after(300.0), 1))
    assert store.finish_attempts([late]) == {"a"}
    job = job_of(store, "a")
    assert (job.state, job.epoch, job.retry_at, job.retry_count) == (JobState.RUNNING, 2, None, 0)


def test_ended_jobs_begin_no_attempt(store: JobStore) -> None:
    ends = {"done": AttemptState.DONE, "failed": AttemptState.FAILED, "cancelled": AttemptState.CANCELLED}
    claims = {name: claim_of(name, 1) for name in ends}
    store.begin_attempts(list(claims.values()), "w1")
    store.finish_attempts([outcome_of(claims[name], state) for name, state in ends.items()])
    begun = store.begin_attempts([*(claim_of(name, 2) for name in ends), claim_of("new")], "w2")
    assert refused(begun) == ({name: JobState(state.value) for name, state in ends.items()}, frozenset())
    assert all(len(job_of(store, name).attempts) == 1 for name in ends)
    assert attempt_states(store, "new") == [AttemptState.RUNNING]


def test_claim_not_above_the_jobs_epoch_is_stale(store: JobStore) -> None:
    store.begin_attempts([claim_of("a", 5), claim_of("b", 5)], "w1")
    begun = store.begin_attempts([claim_of("a", 4), claim_of("b", 5), claim_of("c", 1)], "w2")
    assert refused(begun) == ({}, frozenset({"a", "b"}))
    assert (job_of(store, "a").epoch, job_of(store, "a").attempt_count) == (5, 1)


def test_stale_after_a_requeue(store: JobStore) -> None:
    claim = claim_of("a", 5)
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, AttemptState.REQUEUED)])
    assert store.begin_attempts([claim], "w1").stale == {"a"}


def test_repeated_begin_by_its_own_worker_is_not_stale(store: JobStore) -> None:
    claim = claim_of("a", 5)
    store.begin_attempts([claim], "w1")
    before = store.job("a")
    assert refused(store.begin_attempts([claim], "w1")) == NONE_REFUSED
    assert store.job("a") == before


def test_later_of_two_claims_in_one_call_counts(store: JobStore) -> None:
    assert refused(store.begin_attempts([claim_of("a", 3), claim_of("a", 2)], "w1")) == NONE_REFUSED
    assert (job_of(store, "a").epoch, len(job_of(store, "a").attempts)) == (3, 1)


def test_two_workers_claim_the_same_jobs_at_once(store: JobStore) -> None:
    """Each job keeps the later epoch, whichever thread comes first, and nobody deadlocks."""
    job_ids = [f"job-{number}" for number in range(60)]
    barrier = threading.Barrier(2)

    def begin(epoch: int) -> BegunAttempts:
        claims = [claim_of(job_id, epoch) for job_id in (job_ids if epoch == 1 else reversed(job_ids))]
        barrier.wait(timeout=10)
        return store.begin_attempts(claims, f"w{epoch}")

    with ThreadPoolExecutor(2) as threads:
        earlier, later = threads.map(begin, (1, 2))
    assert refused(later) == NONE_REFUSED
    assert earlier.stale in (frozenset(), frozenset(job_ids))
    assert all(job_of(store, job_id).epoch == 2 for job_id in job_ids)


def test_one_outcome_from_many_threads_leaves_one_row(store: JobStore, database: Engine) -> None:
    claims = [claim_of(f"job-{number}") for number in range(20)]
    store.begin_attempts(claims, "w1")
    outcomes = [outcome_of(claim) for claim in claims]
    barrier = threading.Barrier(3)

    def finish(turned: list[Outcome]) -> frozenset[str]:
        barrier.wait(timeout=10)
        return store.finish_attempts(turned)

    with ThreadPoolExecutor(3) as threads:
        fenced = list(threads.map(finish, (outcomes, outcomes[::-1], outcomes)))
    assert fenced == [frozenset()] * 3
    with reading(database) as connection:
        for table in (JobRow, AttemptRow, ResultRow, JobStatsRow):
            assert connection.scalar(select(func.count()).select_from(table)) == len(claims)


def test_begin_and_finish_of_the_same_jobs_at_once(store: JobStore) -> None:
    """A job's old attempt ends while its new one begins: one of the two wins, whole."""
    job_ids = [f"job-{letter}" for letter in "aBcDeFgHiJ"]  # a collation orders these otherwise than code points do
    old = [claim_of(job_id, 1) for job_id in job_ids]
    new = [claim_of(job_id, 2) for job_id in job_ids]
    store.begin_attempts(old, "w1")
    with ThreadPoolExecutor(2) as threads:
        finishing = threads.submit(store.finish_attempts, [outcome_of(claim) for claim in old])
        beginning = threads.submit(store.begin_attempts, new, "w2")
    fenced, begun = finishing.result(), beginning.result()
    assert fenced | begun.terminal.keys() == set(job_ids)
    assert not fenced & begun.terminal.keys()
    for job_id in job_ids:
        assert job_of(store, job_id).state is (JobState.RUNNING if job_id in fenced else JobState.DONE)
