"""What becomes of an attempt that met an error, by the error's class."""

from datetime import timedelta
from typing import Any

import pytest

from engine.detokenizing import Detokenizer
from tests.sql.builders import after, claim_of
from tests.worker.fakes import CONFIG, decode
from worker.backoff import Backoff, RetryPolicy
from worker.error_classes import ERROR_CLASSES, ErrorClass
from worker.records import AttemptState, Retry
from worker.running.held import HeldJob
from worker.running.outcomes import OutcomeBuilder

NOW = 1020.0  # on the monotonic clock; 20 s after the claim
BUILDER = OutcomeBuilder(Detokenizer(decode), CONFIG, 1024, lambda: 0, lambda: NOW, Backoff(8.0, 100.0, lambda: 0.5))
CODES = {kind: [code for code, of in ERROR_CLASSES.items() if of is kind] for kind in ErrorClass}


def held(**job: Any) -> HeldJob:
    return HeldJob(claim_of("a", at_s=10.0, **job), claimed_at=1000.0)


@pytest.mark.parametrize("code", CODES[ErrorClass.INFRASTRUCTURE])
def test_infrastructure_error_spends_no_retry_and_backs_off(code: str) -> None:
    job = held()
    job.attempt_count, job.retry_count = 3, 2  # as many retries as it has
    outcome = BUILDER.failed(job, code, "reason")
    assert (outcome.state, outcome.error_code, outcome.error_message) == (AttemptState.REQUEUED, code, "reason")
    assert outcome.ended_at == after(30.0)
    assert outcome.retry == Retry(after(30.0) + timedelta(seconds=0.5 * 8.0 * 2**2), 2)


@pytest.mark.parametrize("code", CODES[ErrorClass.TRANSIENT])
def test_transient_error_spends_a_retry(code: str) -> None:
    job = held()
    job.attempt_count, job.retry_count = 7, 1
    outcome = BUILDER.failed(job, code, "reason")
    assert (outcome.state, outcome.error_code) == (AttemptState.FAILED, code)
    assert outcome.retry == Retry(after(30.0) + timedelta(seconds=0.5 * 8.0 * 2**1), 2)
    job.retry_count = RetryPolicy().max_retries
    assert BUILDER.failed(job, code, "reason").retry is None


@pytest.mark.parametrize("code", CODES[ErrorClass.PERMANENT])
def test_permanent_error_ends_the_job(code: str) -> None:
    outcome = BUILDER.failed(held(max_retries=20), code, "reason")
    assert (outcome.state, outcome.error_code, outcome.retry) == (AttemptState.FAILED, code, None)


@pytest.mark.parametrize("code", ["internal_error", "lease_lost"])
@pytest.mark.parametrize(
    ("flag", "state"),
    [
        ("cancel_requested", AttemptState.CANCELLED),
        ("expired", AttemptState.FAILED),
        ("lost", AttemptState.LOST),
    ],
)
def test_job_that_is_to_end_is_not_retried(flag: str, state: AttemptState, code: str) -> None:
    job = held(deadline=after(1000.0))
    setattr(job, flag, True)
    outcome = BUILDER.failed(job, code, "reason")
    assert (outcome.state, outcome.retry) == (state, None)
    assert outcome.error_code == {"expired": "deadline_exceeded", "lost": "lease_lost"}.get(flag)


@pytest.mark.parametrize(("deadline_s", "is_retried"), [(34.0, False), (34.1, True)])
def test_retry_has_to_come_before_the_deadline(deadline_s: float, is_retried: bool) -> None:
    outcome = BUILDER.failed(held(deadline=after(deadline_s)), "internal_error", "reason")  # due at 30 + 4
    assert (outcome.retry is not None) == is_retried
