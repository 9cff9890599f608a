"""Which fields a request may have, and what each becomes in a job: a table for each endpoint.

A rule gets a field's name and its value, which is not null (null is as good as absent everywhere), and returns fields
of a job, or raises RequestRefused. What a job cannot have yet is listed too: accepted with the values that ask for what
is done anyway, refused otherwise.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from engine.limits import MAX_TOP_LOGPROBS
from worker.jobs import shorten
from worker.openai_api.errors import UNSUPPORTED_VALUE, refusal
from worker.openai_api.messages import job_messages

Rule = Callable[[str, Any], Mapping[str, Any]]


class Endpoint(StrEnum):
    """Where a request is sent."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


def same(name: str, value: Any) -> Mapping[str, Any]:
    """Take the value as the job's field of the same name."""
    return {name: value}


def only(*accepted: Any) -> Rule:
    """Return a rule for a field that changes nothing with one of the values `accepted`."""

    def rule(name: str, value: Any) -> Mapping[str, Any]:
        if any(_equal(value, one) for one in accepted):
            return {}
        allowed = " or ".join(json.dumps(one) for one in accepted)
        raise refusal(name, f"{shorten(value)} is not supported; only {allowed} is", UNSUPPORTED_VALUE)

    return rule


def unless(default: Any) -> Rule:
    """Return a rule for the job's field of the same name, which need not be told when it is `default`."""
    return lambda name, value: {} if _equal(value, default) else {name: value}


def unsupported(name: str, value: Any) -> Mapping[str, Any]:
    """Refuse the field, whatever its value."""
    raise refusal(name, "is not supported", UNSUPPORTED_VALUE)


def at_stream(name: str, value: Any) -> Mapping[str, Any]:
    """Leave the field to `worker.openai_api.requests`: it is about the answer, not about the job."""
    return {}


def _equal(value: Any, one: Any) -> bool:
    return isinstance(value, bool) == isinstance(one, bool) and bool(value == one)


def _messages(name: str, value: Any) -> Mapping[str, Any]:
    return {"messages": job_messages(value)}


def _prompt(name: str, value: Any) -> Mapping[str, Any]:
    """Take one text; it is continued as it is, without a chat template."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if not isinstance(value, str):
        raise refusal(name, f"must be one text, got {shorten(value)}; send several as requests of their own")
    return {"prompt": value, "raw": True}


def _max_tokens(name: str, value: Any) -> Mapping[str, Any]:
    return {"max_tokens": value}


def _top_logprobs(name: str, value: Any) -> Mapping[str, Any]:
    """Take how many of the most likely tokens a completion is to tell, beside the chosen one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refusal(name, f"must be a whole number, got {shorten(value)}")
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        raise refusal(name, f"must be between 0 and {MAX_TOP_LOGPROBS}, got {value}")
    return {"logprobs": True, "top_logprobs": value}


def _response_format(name: str, value: Any) -> Mapping[str, Any]:
    return {} if value == {"type": "text"} else {name: value}


def _stop(name: str, value: Any) -> Mapping[str, Any]:
    return {"stop": [value] if isinstance(value, str) else value}


def _remembered(name: str, value: Any) -> Mapping[str, Any]:
    """Keep a name of the sender's in the job's metadata."""
    if not isinstance(value, str):
        raise refusal(name, f"must be a text, got {shorten(value)}")
    return {"metadata": {name: value}}


COMMON: Mapping[str, Rule] = {
    "model": same,
    "temperature": same,
    "top_p": same,
    "seed": same,
    "stop": _stop,
    "metadata": same,
    "user": _remembered,
    "safety_identifier": _remembered,
    "stream": at_stream,
    "stream_options": at_stream,
    "n": same,
    "frequency_penalty": same,
    "presence_penalty": same,
    "logit_bias": same,
    "service_tier": only("auto", "default"),
    "store": only(False),
    "prompt_cache_key": unsupported,
    # Ours, beyond OpenAI's.
    "top_k": same,
    "min_p": same,
    "repetition_penalty": same,
    "regex": same,
    "grammar": same,
    "min_tokens": same,
    "ignore_eos": same,
    "skip_special_tokens": same,
    "stop_token_ids": same,
    "return_token_ids": same,
    "prompt_logprobs": same,
}

FIELDS: Mapping[Endpoint, Mapping[str, Rule]] = {
    Endpoint.CHAT: {
        **COMMON,
        "messages": _messages,
        "max_tokens": _max_tokens,
        "max_completion_tokens": _max_tokens,
        "logprobs": same,
        "top_logprobs": same,
        "response_format": _response_format,
        "tools": unless([]),
        "tool_choice": unless("auto"),
        "parallel_tool_calls": unless(True),
        "functions": only([]),
        "function_call": only("none", "auto"),
        "modalities": only(["text"]),
        "audio": unsupported,
        "best_of": unsupported,
        "echo": unsupported,
        "prediction": unsupported,
        "reasoning_effort": only("none"),
        "verbosity": only("medium"),
        "web_search_options": unsupported,
    },
    Endpoint.COMPLETIONS: {
        **COMMON,
        "prompt": _prompt,
        "max_tokens": _max_tokens,
        "best_of": same,
        "echo": same,
        "logprobs": _top_logprobs,
        "suffix": unsupported,
    },
}

# What OpenAI does where a request does not say. A chat may fill the context; a completion ends after 16 tokens.
DEFAULTS: Mapping[Endpoint, Mapping[str, Any]] = {
    Endpoint.CHAT: {"temperature": 1.0, "max_tokens": None},
    Endpoint.COMPLETIONS: {"temperature": 1.0, "max_tokens": 16},
}

REQUIRED: Mapping[Endpoint, str] = {Endpoint.CHAT: "messages", Endpoint.COMPLETIONS: "prompt"}
