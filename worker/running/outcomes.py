"""From a finished request to what SQL and Redis get: text, reason, figures."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.request import FinishReason, RequestError
from worker.backoff import Backoff
from worker.error_classes import ErrorClass, classify
from worker.errors import InvalidJob
from worker.jobs import PromptJob
from worker.queue.job_queue import Acknowledgement
from worker.records import AttemptState, Choice, JobStats, Outcome, Retry
from worker.running.choices import all_choices, kept_choices
from worker.running.held import HeldJob
from worker.running.job_stats import stats_of
from worker.running.token_logprobs import described_prompt
from worker.running.usage import usage_of
from worker.sql.lookups import JobResult
from worker.tool_calls import TOOL_CALLS_REASON, calling_fields

INTERNAL_ERROR = "internal_error"
RESULT_REFUSED = "result_refused"
DEADLINE_EXCEEDED = "deadline_exceeded"
DEADLINE_REASON = "deadline"  # the finish reason of an output that a deadline cut short
LEASE_LOST = ("lease_lost", "the lease ran out and the job went back to its queue")


class OutcomeBuilder:
    """Builds outcomes for one engine.

    `config` is the engine's and `bytes_per_block` of its KV cache; `peak_memory_bytes` reads the device's (or
    process's) peak; `monotonic` is the engine's clock.
    """

    def __init__(
        self,
        detokenize: Detokenizer,
        config: EngineConfig,
        bytes_per_block: int,
        peak_memory_bytes: Callable[[], int],
        monotonic: Callable[[], float],
        backoff: Backoff,
    ) -> None:
        self._detokenize = detokenize
        self._config = config
        self._bytes_per_block = bytes_per_block
        self._peak_memory_bytes = peak_memory_bytes
        self._monotonic = monotonic
        self._backoff = backoff

    def finished(self, job: HeldJob) -> Outcome:
        """Return the outcome of a job whose request finished, whatever the reason."""
        assert job.outputs, "a finished job has its requests"
        error = next((request.error for request in job.outputs if request.error is not None), None)
        if error is not None:
            return self.failed(job, error.code, str(error))
        is_aborted = any(request.finish_reason is FinishReason.CANCELLED for request in job.outputs)
        if is_aborted and job.lost:
            return self.ended_early(job)
        first, *further = kept_choices(job, self._detokenize)
        outcome = self._outcome(
            job,
            AttemptState.CANCELLED if is_aborted else AttemptState.DONE,
            text=first.text,
            token_ids=first.token_ids,
            finish_reason=FinishReason.CANCELLED.value if is_aborted else first.finish_reason,
            stats=stats_of(job, self._config, self._bytes_per_block, self._peak_memory_bytes()),
            logprobs=first.logprobs,
            choices=tuple(further),
        )
        outcome = replace(
            outcome,
            prompt_logprobs=described_prompt(job.outputs[0], self._detokenize),
            prompt_token_ids=list(job.prompt) if job.claim.job.return_token_ids else None,
            mean_logprob=first.mean_logprob,
        )
        return expired(outcome) if is_aborted and job.expired and not job.cancel_requested else outcome

    def rejected(self, job: HeldJob, error: InvalidJob | RequestError) -> Outcome:
        """Return the outcome of a job that cannot be served as asked."""
        return self.failed(job, error.code, str(error))

    def failed(self, job: HeldJob, code: str, message: str) -> Outcome:
        """Return the outcome of an attempt that met an error; its class says whether the job has another one.

        A job that somebody cancelled ends so instead; one whose deadline would have passed by then fails.
        """
        error, error_class = (code, message), classify(code)
        if error_class is ErrorClass.PERMANENT:
            return self._outcome(job, AttemptState.FAILED, error=error)
        if job.must_end:
            return self.ended_early(job)
        if error_class is ErrorClass.INFRASTRUCTURE:
            return self._put_off(job, error)
        return self._outcome(job, AttemptState.FAILED, error=error, retry=self._next_retry(job))

    def broken(self, job: HeldJob, error: Exception) -> Outcome:
        """Return the outcome of a job that met a fault of ours. It says no more than which; the log has the rest."""
        return self.failed(job, INTERNAL_ERROR, _internal_message(error))

    def ended_early(self, job: HeldJob) -> Outcome:
        """Return the outcome of a job that must end and has no output: lost to another worker, cancelled or expired."""
        if job.lost:
            return self._outcome(job, AttemptState.LOST, error=LEASE_LOST)
        outcome = self._outcome(job, AttemptState.CANCELLED, finish_reason=FinishReason.CANCELLED.value)
        return outcome if job.cancel_requested else expired(outcome)

    def handed_back(self, job: HeldJob) -> Outcome:
        return self._outcome(job, AttemptState.REQUEUED)

    def _put_off(self, job: HeldJob, error: tuple[str, str]) -> Outcome:
        """Return the outcome of a job that is handed back for no fault of its own, and is better not run at once."""
        seconds = self._backoff.jittered_seconds(job.attempt_count - 1)
        retry = Retry(self._wall_time(job) + timedelta(seconds=seconds), job.retry_count)
        return self._outcome(job, AttemptState.REQUEUED, error=error, retry=retry)

    def _next_retry(self, job: HeldJob) -> Retry | None:
        """Return the retry that a job may spend now, or None."""
        policy = job.claim.retries
        if not policy.allows(job.retry_count):
            return None
        due_at = self._wall_time(job) + timedelta(seconds=self._backoff.seconds(policy, job.retry_count))
        deadline = job.claim.job.deadline
        return None if deadline is not None and due_at >= deadline else Retry(due_at, job.retry_count + 1)

    def _outcome(
        self,
        job: HeldJob,
        state: AttemptState,
        *,
        text: str | None = None,
        token_ids: tuple[int, ...] = (),
        finish_reason: str | None = None,
        error: tuple[str, str] | None = None,
        stats: JobStats | None = None,
        retry: Retry | None = None,
        logprobs: list[dict[str, Any]] | None = None,
        choices: tuple[Choice, ...] = (),
    ) -> Outcome:
        return Outcome(
            claim=job.claim,
            state=state,
            ended_at=self._wall_time(job),
            text=text,
            token_ids=token_ids,
            finish_reason=finish_reason,
            prompt_tokens=len(job.prompt),
            completion_tokens=0 if text is None else sum(request.num_output_tokens for request in job.outputs),
            error_code=error[0] if error else None,
            error_message=error[1] if error else None,
            stats=stats,
            retry=retry,
            logprobs=logprobs,
            choices=choices,
            usage=usage_of(job),
        )

    def _wall_time(self, job: HeldJob) -> datetime:
        """Return now on the clock of the claim, Redis's, so that a job's times are of one clock."""
        elapsed = timedelta(seconds=self._monotonic() - job.claimed_at)
        return (job.claim.claimed_at + elapsed).astimezone(UTC)


def expired(outcome: Outcome) -> Outcome:
    """Return what a job's end amounts to when its deadline was the reason; its output stays."""
    claim = outcome.claim
    deadline = claim.deadline
    assert deadline is not None, "only a deadline expires"
    what = f"the deadline {deadline:%Y-%m-%d %H:%M:%S} UTC"
    if deadline != claim.job.deadline:
        what = f"RQ's time-out of {claim.timeout_seconds:g} s from the claim"
    when = f"after {outcome.completion_tokens} tokens" if outcome.completion_tokens else "before its first token"
    return replace(
        outcome,
        state=AttemptState.FAILED,
        finish_reason=DEADLINE_REASON,
        error_code=DEADLINE_EXCEEDED,
        error_message=f"{what} passed {when}",
    )


def broken_off(outcome: Outcome, error: Exception) -> Outcome:
    """Return the failure that takes the place of an outcome which SQL refuses."""
    return replace(
        outcome,
        state=AttemptState.FAILED,
        text=None,
        token_ids=(),
        finish_reason=None,
        completion_tokens=0,
        error_code=RESULT_REFUSED,
        error_message=f"the database refuses the result ({type(error).__name__}); the worker's log has the details",
        stats=None,
        retry=None,
        logprobs=None,
        choices=(),
        prompt_logprobs=None,
        prompt_token_ids=None,
        mean_logprob=None,
    )


def return_value(result: Outcome | JobResult, stats: JobStats | None, job: PromptJob, job_id: str) -> dict[str, Any]:
    """Return what a producer gets for a job that is done, whether from its outcome or from SQL."""
    asked: dict[str, Any] = {"token_ids": list(result.token_ids)} if job.return_token_ids else {}
    if result.logprobs is not None:
        asked["logprobs"] = result.logprobs
    if result.prompt_logprobs is not None:
        asked["prompt_logprobs"] = result.prompt_logprobs
    if job.return_token_ids and result.prompt_token_ids is not None:
        asked["prompt_token_ids"] = result.prompt_token_ids
    if result.mean_logprob is not None:
        asked["mean_logprob"] = result.mean_logprob
    if result.finish_reason == TOOL_CALLS_REASON:
        asked |= calling_fields(result.text or "", job_id)
    if job.n > 1:
        asked["choices"] = [_choice_value(choice, job, job_id) for choice in all_choices(result)]
    return {
        "text": f"{echoed(job)}{result.text}",
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "cached_tokens": 0 if stats is None else stats.prefix_hit_tokens,
        **asked,
    }


def echoed(job: PromptJob) -> str:
    """Return what a producer gets before each output."""
    return (job.prompt or "") if job.echo else ""


def _choice_value(choice: Choice, job: PromptJob, job_id: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"token_ids": list(choice.token_ids)} if job.return_token_ids else {}
    if choice.logprobs is not None:
        asked["logprobs"] = choice.logprobs
    if choice.mean_logprob is not None:
        asked["mean_logprob"] = choice.mean_logprob
    if choice.finish_reason == TOOL_CALLS_REASON:
        asked |= calling_fields(choice.text, job_id, choice.index)
    return {"index": choice.index, "text": echoed(job) + choice.text, "finish_reason": choice.finish_reason, **asked}


def acknowledgement(outcome: Outcome) -> Acknowledgement:
    """Return what RQ's readers see of an outcome that was committed: DONE, FAILED or CANCELLED."""
    value = None
    if outcome.state is AttemptState.DONE:
        value = return_value(outcome, outcome.stats, outcome.claim.job, outcome.claim.job_id)
    error = f"{outcome.error_code}: {outcome.error_message}" if outcome.error_code else None
    return Acknowledgement(outcome.claim, outcome.state, value, error)


def _internal_message(error: Exception) -> str:
    return f"the worker met an unexpected {type(error).__name__}; its log has the details"
