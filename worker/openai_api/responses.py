"""Results of jobs as OpenAI's response objects: whole, or in chunks as they are generated."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from worker.openai_api.fields import Endpoint
from worker.openai_api.logprobs import logprobs_object

# How an output ended -> OpenAI's word. An output that ended otherwise belongs to a job that failed.
FINISH_REASONS = {"stop": "stop", "stop_string": "stop", "length": "length", "tool_calls": "tool_calls"}

_ID_PREFIXES = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETIONS: "cmpl"}
_OBJECTS = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}
_CHUNK_OBJECTS = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What a response says of its job."""

    endpoint: Endpoint
    job_id: str
    created_at: datetime
    model: str

    @property
    def response_id(self) -> str:
        return f"{_ID_PREFIXES[self.endpoint]}-{self.job_id}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One output. `finish_reason` is a job's: stop, stop_string, length or tool_calls; with the last one, `calls` are
    OpenAI's objects, and `text` is what was said beside them."""

    text: str
    finish_reason: str
    logprobs: Sequence[Mapping[str, Any]] | None = None  # of each token of `text`, as a job's result has them
    calls: Sequence[Mapping[str, Any]] = ()
    token_ids: Sequence[int] | None = None  # where the job asked


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request; `cached_tokens` of its prompt came from the prefix cache, None where that is not known."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None


def completion(
    head: ResponseHead,
    choices: Sequence[Choice],
    usage: Usage,
    prompt_logprobs: Sequence[Mapping[str, Any]] | None = None,
    prompt_token_ids: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return the `chat.completion` or `text_completion` object of a job that is done, with what it asked to know of its
    prompt, beyond OpenAI's."""
    of_prompt = {"prompt_logprobs": prompt_logprobs, "prompt_token_ids": prompt_token_ids}
    asked = {name: list(value) for name, value in of_prompt.items() if value is not None}
    return {
        **_frame(head, _OBJECTS[head.endpoint]),
        "choices": [_choice(head.endpoint, index, choice) for index, choice in enumerate(choices)],
        "usage": usage_object(usage),
        **asked,
    }


def choices_of(value: Mapping[str, Any], *, echo: bool) -> list[Choice]:
    """Return the outputs of a job that is done, as its result tells them to a producer."""
    before = value.get("prompt_logprobs") if echo else None
    return [
        Choice(
            (output["content"] or "") if output.get("tool_calls") else output["text"],
            output["finish_reason"],
            echoed_logprobs(before, output.get("logprobs")),
            output.get("tool_calls") or (),
            output.get("token_ids"),
        )
        for output in value.get("choices", [value])
    ]


def echoed_logprobs(
    before: Sequence[Mapping[str, Any]] | None, logprobs: Sequence[Mapping[str, Any]] | None
) -> Sequence[Mapping[str, Any]] | None:
    """Return the log-probabilities of an output, with those of the prompt before them, where it is echoed."""
    return logprobs if before is None or logprobs is None else [*before, *logprobs]


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object."""
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return counts


class Chunks:
    """The chunk objects of one streamed response, in their order: `opening`, for each output any number of `text`, its
    `calls` and `closing`, then `usage`. `index` is an output's."""

    def __init__(self, head: ResponseHead, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage

    def opening(self, num_outputs: int) -> Iterator[dict[str, Any]]:
        """Yield what comes before the first text."""
        if self._head.endpoint is Endpoint.CHAT:
            for index in range(num_outputs):
                yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def text(self, index: int, text: str) -> dict[str, Any]:
        """Return the chunk of a piece of an output."""
        is_chat = self._head.endpoint is Endpoint.CHAT
        return self._chunk(index, {"delta": {"content": text}} if is_chat else {"text": text})

    def calls(self, index: int, calls: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the chunk of each call."""
        for place, call in enumerate(calls):
            yield self._chunk(index, {"delta": {"tool_calls": [{"index": place, **call}]}})

    def closing(self, index: int, finish_reason: str) -> dict[str, Any]:
        """Return what comes after the last text of an output; `finish_reason` is as a job has it."""
        is_chat = self._head.endpoint is Endpoint.CHAT
        last: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        return self._chunk(index, last, FINISH_REASONS[finish_reason])

    def usage(self, usage: Usage) -> Iterator[dict[str, Any]]:
        """Yield what comes after the last output."""
        if self._include_usage:
            frame = _frame(self._head, _CHUNK_OBJECTS[self._head.endpoint])
            yield {**frame, "choices": [], "usage": usage_object(usage)}

    def _chunk(self, index: int, content: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
        frame = _frame(self._head, _CHUNK_OBJECTS[self._head.endpoint])
        return {**frame, "choices": [choice], **({"usage": None} if self._include_usage else {})}


def _frame(head: ResponseHead, kind: str) -> dict[str, Any]:
    return {"id": head.response_id, "object": kind, "created": int(head.created_at.timestamp()), "model": head.model}


def _choice(endpoint: Endpoint, index: int, choice: Choice) -> dict[str, Any]:
    ending = {
        "logprobs": logprobs_object(endpoint, choice.logprobs),
        "finish_reason": FINISH_REASONS[choice.finish_reason],
        **({} if choice.token_ids is None else {"token_ids": list(choice.token_ids)}),
    }
    if endpoint is Endpoint.COMPLETIONS:
        return {"index": index, "text": choice.text, **ending}
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message |= {"content": choice.text or None, "tool_calls": list(choice.calls)}
    return {"index": index, "message": message, **ending}
