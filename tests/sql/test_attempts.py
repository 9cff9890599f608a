"""Beginning and finishing attempts: what is written of each, all or nothing. On both databases."""

from dataclasses import replace

import pytest

from tests.sql.begun import NONE_REFUSED, attempt_states, job_of, refused
from tests.sql.builders import after, claim_of, outcome_of, stats_of, worker_of
from worker.records import AttemptState, JobState, Retry
from worker.sql.attempts import BegunAttempt
from worker.sql.lookups import IDS_PER_STATEMENT
from worker.sql.store import JobStore


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
