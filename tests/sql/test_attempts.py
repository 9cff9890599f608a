"""Beginning and finishing attempts: the fence, repeats, double delivery, threads. On both databases."""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine, func, select

from tests.sql.builders import after, claim_of, outcome_of, stats_of, worker_of
from worker.records import AttemptState, JobState, Outcome, Retry
from worker.sql.attempts import BegunAttempt, BegunAttempts
from worker.sql.database import reading
from worker.sql.lookups import IDS_PER_STATEMENT, JobDetail
from worker.sql.store import JobStore
from worker.sql.tables import AttemptRow, JobRow, JobStatsRow, ResultRow

Refused = tuple[Mapping[str, JobState], frozenset[str]]

NONE_REFUSED: Refused = ({}, frozenset())


def refused(attempts: BegunAttempts) -> Refused:
    return attempts.terminal, attempts.stale


def job_of(store: JobStore, job_id: str) -> JobDetail:
    job = store.job(job_id)
    assert job is not None
    return job


def attempt_states(store: JobStore, job_id: str) -> list[AttemptState]:
    return [attempt.state for attempt in job_of(store, job_id).attempts]


def test_first_attempt_writes_job_and_attempt(store: JobStore) -> None:
    claim = claim_of("a", 5, queue="high", tenant="acme", model="smollm2", custom_id="row-1")
    assert refused(store.begin_attempts([claim], "w1")) == NONE_REFUSED
    job = job_of(store, "a")
    assert (job.queue, job.tenant, job.model, job.custom_id) == ("high", "acme", "smollm2", "row-1")
    assert (job.state, job.epoch, job.attempt_count, job.payload) == (JobState.RUNNING, 5, 1, claim.payload_json)
    assert (job.enqueued_at, job.started_at, job.ended_at) == (claim.enqueued_at, claim.claimed_at, None)
    (attempt,) = job.attempts
    assert (attempt.epoch, attempt.worker_name, attempt.state) == (5, "w1", AttemptState.RUNNING)
    assert (attempt.started_at, attempt.ended_at) == (claim.claimed_at, None)
    assert job.result is None
    assert job.stats is None


def test_job_that_names_no_model_has_the_workers(store: JobStore) -> None:
    store.register_worker(worker_of("w1", model="smollm2"))
    store.begin_attempts([claim_of("a"), claim_of("b", model="models/smollm2.gguf")], "w1")
    assert (job_of(store, "a").model, job_of(store, "b").model) == ("smollm2", "models/smollm2.gguf")


def test_nothing_to_begin_or_finish(store: JobStore) -> None:
    assert refused(store.begin_attempts([], "w1")) == NONE_REFUSED
    assert store.finish_attempts([]) == frozenset()


def test_done_writes_result_attempt_and_stats(store: JobStore) -> None:
    claim = claim_of("a")
    outcome = outcome_of(claim, text="Grüße, 世界 🙂\n", token_ids=tuple(range(1000)))
    store.begin_attempts([claim], "w1")
    assert store.finish_attempts([outcome]) == frozenset()
    job = job_of(store, "a")
    assert (job.state, job.ended_at, job.error_code) == (JobState.DONE, outcome.ended_at, None)
    assert (job.attempts[0].state, job.attempts[0].ended_at) == (AttemptState.DONE, outcome.ended_at)
    assert job.stats == outcome.stats
    assert job.result is not None
    assert (job.result.text, job.result.token_ids) == (outcome.text, outcome.token_ids)
    assert (job.result.finish_reason, job.result.prompt_tokens, job.result.completion_tokens) == ("stop", 40, 3)
    assert job.result.created_at == outcome.ended_at


def test_figures_that_do_not_exist_are_none(store: JobStore) -> None:
    claim = claim_of("a")
    stats = stats_of(ttft_ms=None, itl_mean_ms=None, itl_p99_ms=None)
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, stats=stats)])
    assert job_of(store, "a").stats == stats


def test_output_that_postgresql_cannot_hold_is_replaced(store: JobStore) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, text="a\x00b\ud800c", token_ids=(0, 1))])
    result = store.results(["a"])["a"]
    assert (result.text, result.token_ids) == ("a\ufffdb\ufffdc", (0, 1))


@pytest.mark.parametrize(
    ("ended", "job_state"),
    [(AttemptState.FAILED, JobState.FAILED), (AttemptState.CANCELLED, JobState.CANCELLED)],
)
def test_error_is_written_on_job_and_attempt(store: JobStore, ended: AttemptState, job_state: JobState) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    assert store.finish_attempts([outcome_of(claim, ended, text="It is", stats=stats_of())]) == frozenset()
    job = job_of(store, "a")
    assert (job.state, job.error_code) == (job_state, f"{ended.value}_code")
    assert (job.attempts[0].state, job.attempts[0].error_message) == (ended, f"it was {ended.value}")
    assert job.result is not None
    assert job.result.text == "It is"
    assert job.stats is not None


@pytest.mark.parametrize("ended", [AttemptState.REQUEUED, AttemptState.LOST])
def test_attempt_handed_back_queues_the_job_without_output(store: JobStore, ended: AttemptState) -> None:
    claim = claim_of("a", 1)
    store.begin_attempts([claim], "w1")
    assert store.finish_attempts([outcome_of(claim, ended, text="It is", stats=stats_of())]) == frozenset()
    job = job_of(store, "a")
    assert (job.state, job.ended_at, job.error_code) == (JobState.QUEUED, None, None)
    assert (job.result, job.stats) == (None, None)
    assert (job.attempts[0].state, job.attempts[0].error_code) == (ended, f"{ended.value}_code")

    assert refused(store.begin_attempts([claim_of("a", 2, at_s=30.0)], "w2")) == NONE_REFUSED
    job = job_of(store, "a")
    assert (job.attempt_count, job.started_at) == (2, claim.claimed_at)
    assert attempt_states(store, "a") == [ended, AttemptState.RUNNING]


def test_running_outcome_is_refused(store: JobStore) -> None:
    with pytest.raises(ValueError, match="job a has not ended"):
        store.finish_attempts([outcome_of(claim_of("a"), AttemptState.RUNNING)])


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


def test_batch_is_written_with_the_first_of_its_jobs(store: JobStore) -> None:
    store.begin_attempts([claim_of("a", batch_id="night"), claim_of("b", batch_id="night")], "w1")
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.created_at, batch.states) == (None, claim_of("a").enqueued_at, {JobState.RUNNING: 2})
    claim = claim_of("c", batch_id="night", batch_size=3)
    store.begin_attempts([claim], "w1")
    store.begin_attempts([claim_of("d", batch_id="night", batch_size=9)], "w1")  # the size first announced stays
    store.finish_attempts([outcome_of(claim)])
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.states) == (3, {JobState.RUNNING: 3, JobState.DONE: 1})
    assert store.batch("unknown") is None


def test_more_jobs_than_one_statement_takes(store: JobStore) -> None:
    count = 2 * IDS_PER_STATEMENT + 7
    claims = [claim_of(f"job-{number}", 1, batch_id=f"batch-{number % 3}") for number in range(count)]
    assert refused(store.begin_attempts(claims, "w1")) == NONE_REFUSED
    assert store.finish_attempts([outcome_of(claim) for claim in claims]) == frozenset()
    again = store.begin_attempts([replace(claim, epoch=2) for claim in claims], "w2")
    assert len(again.terminal) == count
    assert set(again.terminal.values()) == {JobState.DONE}
    assert len(store.results(claim.job_id for claim in claims)) == count


def test_one_failing_row_rolls_everything_back(store: JobStore) -> None:
    good, bad = claim_of("a"), claim_of("b")
    store.begin_attempts([good, bad], "w1")
    naive = replace(outcome_of(bad), ended_at=after(5).replace(tzinfo=None))
    with pytest.raises(Exception, match="has no time zone"):
        store.finish_attempts([outcome_of(good), naive])
    assert store.states(["a", "b"]) == {"a": JobState.RUNNING, "b": JobState.RUNNING}
    assert store.results(["a"]) == {}


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


@pytest.mark.parametrize("state", [AttemptState.FAILED, AttemptState.REQUEUED])
def test_retry_puts_the_job_back_with_its_error_and_count(store: JobStore, state: AttemptState) -> None:
    claim = claim_of("a", 1)
    store.begin_attempts([claim], "w1")
    outcome = replace(outcome_of(claim, state), retry=Retry(after(300.0), 1))
    for _ in range(2):  # the second is a repetition after a lost reply
        assert store.finish_attempts([outcome]) == frozenset()
        job = job_of(store, "a")
        assert (job.state, job.retry_at, job.retry_count) == (JobState.QUEUED, after(300.0), 1)
        assert (job.error_code, job.error_message, job.ended_at) == (f"{state}_code", f"it was {state}", None)
        assert (job.result, job.stats) == (None, None)
        assert attempt_states(store, "a") == [state]


def test_what_a_job_has_spent_is_told_to_its_next_attempt(store: JobStore) -> None:
    claims = [claim_of("a", epoch) for epoch in (1, 2, 3)]
    assert store.begin_attempts(claims[:1], "w1").begun == {"a": BegunAttempt(1, 0)}
    store.finish_attempts([replace(outcome_of(claims[0], AttemptState.FAILED), retry=Retry(after(300.0), 1))])
    for _ in range(2):  # the second is a repetition after a lost reply
        assert store.begin_attempts(claims[1:2], "w2").begun == {"a": BegunAttempt(2, 1)}
        job = job_of(store, "a")
        assert (job.state, job.retry_at, job.error_code, job.retry_count) == (JobState.RUNNING, None, None, 1)
    store.finish_attempts([outcome_of(claims[1], AttemptState.REQUEUED)])  # handed back: spends none
    assert job_of(store, "a").retry_count == 1
    assert store.begin_attempts(claims[2:], "w1").begun == {"a": BegunAttempt(3, 1)}
    store.finish_attempts([outcome_of(claims[2], AttemptState.FAILED)])
    store.mark_retried(["a"])
    assert job_of(store, "a").retry_count == 0  # sent round again by a person: as if it were new


def test_late_retry_is_fenced(store: JobStore) -> None:
    first, second = claim_of("a", 1), claim_of("a", 2)
    store.begin_attempts([first], "w1")
    store.begin_attempts([second], "w2")
    late = replace(outcome_of(first, AttemptState.FAILED), retry=Retry(after(300.0), 1))
    assert store.finish_attempts([late]) == {"a"}
    job = job_of(store, "a")
    assert (job.state, job.epoch, job.retry_at, job.retry_count) == (JobState.RUNNING, 2, None, 0)


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE jobs; --",
        "=cmd|' /C calc'!A0",
        "<script>alert(1)</script>",
        "\x1b[2J\x1b]0;x\x07",
        "%s %(x)s :x ?",
    ],
)
def test_text_is_data_whatever_it_says(store: JobStore, text: str) -> None:
    claim = claim_of("a", prompt=text, system=text, custom_id=text, metadata={text: text})
    store.begin_attempts([claim], "w")
    store.finish_attempts([replace(outcome_of(claim), text=text)])
    job = store.job("a")
    assert job is not None
    assert job.result is not None
    assert (job.result.text, job.custom_id, job.payload) == (text, text, claim.payload_json)
