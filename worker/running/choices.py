"""From the finished requests of a job to its outputs: which are kept, in which order, as text."""

from engine.detokenizing import Detokenizer
from engine.request import FinishReason, Request
from worker.jobs import PromptJob
from worker.records import Choice, Outcome
from worker.running.held import HeldJob
from worker.running.token_logprobs import described
from worker.sql.lookups import JobResult
from worker.tool_calls import TOOL_CALLS_REASON, read_output


def kept_choices(job: HeldJob, detokenize: Detokenizer) -> list[Choice]:
    """Return a job's outputs, at least one: all of them in their order, or the `n` best of `best_of`, best first.

    The best one's tokens have the highest mean log-probability, by the model alone; of equals, the earlier output is.
    """
    requests = list(job.outputs)
    asked = job.claim.job
    is_chosen = len(requests) > asked.n
    if is_chosen:
        requests = sorted(requests, key=_mean_logprob, reverse=True)[: asked.n]
    choices = []
    for index, request in enumerate(requests):
        assert request.finish_reason is not None, "a finished request has a reason"
        text = output_text(request, detokenize)
        choices.append(
            Choice(
                index,
                text,
                tuple(request.output_token_ids),
                reason_of(asked, request.finish_reason, text),
                described(request, detokenize) if asked.logprobs else None,
                _mean_logprob(request) if is_chosen and request.logprobs else None,
            )
        )
    return choices


def output_text(request: Request, detokenize: Detokenizer) -> str:
    """Return the output so far; of a request that a stop string ended, the part before it."""
    params = request.params
    text = detokenize(request.output_token_ids, skip_special_tokens=params.skip_special_tokens, goes_on=params.goes_on)
    return text[: request.stop_at]


def all_choices(result: Outcome | JobResult) -> list[Choice]:
    """Return all outputs of a result, in the order of their indexes."""
    assert result.text is not None, "a job that is done has an output"
    kept = (result.finish_reason, result.logprobs, result.mean_logprob)
    return [Choice(0, result.text, tuple(result.token_ids), *kept), *result.choices]


def reason_of(job: PromptJob, reason: FinishReason, text: str) -> str:
    """Return why an output ended: that it calls tools, where it was offered some and came to its own end."""
    names = {tool.function.name for tool in job.offered_tools}
    is_whole = reason in (FinishReason.STOP, FinishReason.STOP_STRING)
    return TOOL_CALLS_REASON if names and is_whole and read_output(text, names) else reason.value


def _mean_logprob(request: Request) -> float:
    """Return the mean over an output's tokens; of one that was cut short before its first token, less than any."""
    if not request.logprobs:
        return float("-inf")
    return sum(noted.logprob for noted in request.logprobs) / len(request.logprobs)
