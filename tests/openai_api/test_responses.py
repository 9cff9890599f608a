"""Results as OpenAI's response and error objects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from worker.errors import ConfigurationError, InvalidJob, PagemillError, ServiceUnavailable, TryLater
from worker.openai_api.errors import error_of, error_of_job
from worker.openai_api.fields import Endpoint
from worker.openai_api.responses import Choice, Chunks, ResponseHead, Usage, choices_of, completion

AT = datetime(2026, 3, 1, 12, 0, 0, 900_000, tzinfo=UTC)
USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=8)
USAGE_OBJECT = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 8},
}


def head(endpoint: Endpoint) -> ResponseHead:
    return ResponseHead(endpoint, "j1", AT, "smollm2")


def test_a_chat_completion() -> None:
    assert completion(head(Endpoint.CHAT), [Choice("Hi", "stop_string")], USAGE) == {
        "id": "chatcmpl-j1",
        "object": "chat.completion",
        "created": 1772366400,
        "model": "smollm2",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE_OBJECT,
    }


def test_a_text_completion_without_knowledge_of_the_cache() -> None:
    made = completion(head(Endpoint.COMPLETIONS), [Choice("Hi", "length")], Usage(10, 3))
    assert (made["id"], made["object"]) == ("cmpl-j1", "text_completion")
    assert made["choices"] == [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "length"}]
    assert made["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


ENTRIES = [
    {"token": "é", "token_id": 4, "logprob": -0.5, "top_logprobs": [{"token": "é", "token_id": 4, "logprob": -0.5}]},
    {"token": "\ufffd", "token_id": 5, "logprob": -0.25, "top_logprobs": []},
]
EMOJI = [
    {"token": "\ufffd", "token_id": 6, "logprob": -0.5, "bytes": [0xF0, 0x9F], "top_logprobs": []},
    {"token": "\ufffd", "token_id": 7, "logprob": -0.25, "bytes": [0x99, 0x82], "top_logprobs": []},
    {"token": "!", "token_id": 8, "logprob": -0.125, "top_logprobs": []},
]


def test_log_probabilities_of_a_chat() -> None:
    (choice,) = completion(head(Endpoint.CHAT), [Choice("é", "stop", ENTRIES)], USAGE)["choices"]
    first = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    assert choice["logprobs"] == {
        "content": [
            first | {"top_logprobs": [first]},
            {"token": "\ufffd", "logprob": -0.25, "bytes": None, "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_log_probabilities_of_a_completion() -> None:
    (choice,) = completion(head(Endpoint.COMPLETIONS), [Choice("é", "stop", ENTRIES)], USAGE)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["é", "\ufffd"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"é": -0.5}, {"\ufffd": -0.25}],  # the chosen one is told in any case, as OpenAI says
        "text_offset": [0, 1],
    }


def test_parts_of_a_character_have_their_bytes_and_its_place() -> None:
    made = completion(head(Endpoint.CHAT), [Choice("🙂!", "stop", EMOJI)], USAGE)
    content = made["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == "🙂!"
    (choice,) = completion(head(Endpoint.COMPLETIONS), [Choice("🙂!", "stop", EMOJI)], USAGE)["choices"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1]


def test_of_tokens_with_one_text_the_likeliest_is_told() -> None:
    top = [{"token": "\ufffd", "token_id": token_id, "logprob": -float(token_id)} for token_id in (1, 2)]
    entry = {"token": "\ufffd", "token_id": 3, "logprob": -3.0, "top_logprobs": top}
    (choice,) = completion(head(Endpoint.COMPLETIONS), [Choice("", "stop", [entry])], USAGE)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -1.0}]


def test_errors_of_jobs_name_the_field_at_fault() -> None:
    for code, message, param in (
        ("invalid_token", "logit_bias holds token id 99; ids go from 0 to 9", "logit_bias"),
        ("invalid_job", "response_format: cannot be followed: why", "response_format"),
        ("invalid_job", "payload: is no JSON object", None),
        ("context_length", "prompt has 9 tokens and max_tokens is 9: together 18", None),
    ):
        assert error_of_job(code, message).param == param


def streamed(endpoint: Endpoint, *, include_usage: bool) -> list[dict[str, Any]]:
    chunks = Chunks(head(endpoint), include_usage=include_usage)
    return [*chunks.opening(1), chunks.text(0, "Hi"), chunks.closing(0, "stop"), *chunks.usage(USAGE)]


def test_a_chat_in_chunks() -> None:
    chunks = streamed(Endpoint.CHAT, include_usage=True)
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {("chatcmpl-j1", "chat.completion.chunk")}
    *parts, last = chunks
    assert [chunk["choices"][0]["delta"] for chunk in parts] == [
        {"role": "assistant", "content": ""},
        {"content": "Hi"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in parts] == [None, None, "stop"]
    assert [chunk["usage"] for chunk in parts] == [None, None, None]
    assert (last["choices"], last["usage"]) == ([], USAGE_OBJECT)


def test_several_outputs_in_chunks() -> None:
    chunks = Chunks(head(Endpoint.CHAT), include_usage=False)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    parts = [*chunks.opening(2), chunks.text(1, "x"), *chunks.calls(1, [call]), chunks.closing(1, "tool_calls")]
    (choices,) = zip(*(part["choices"] for part in parts), strict=True)
    assert [choice["index"] for choice in choices] == [0, 1, 1, 1, 1]
    assert choices[3]["delta"] == {"tool_calls": [{"index": 0, **call}]}
    assert choices[4]["finish_reason"] == "tool_calls"


def test_a_completion_in_chunks() -> None:
    chunks = streamed(Endpoint.COMPLETIONS, include_usage=False)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["Hi", ""]
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("code", "status", "openai_code", "kind"),
    [
        ("context_length", 400, "context_length_exceeded", "invalid_request_error"),
        ("model_not_served", 404, "model_not_found", "invalid_request_error"),
        ("invalid_token", 400, "invalid_value", "invalid_request_error"),
        ("grammar_failed", 400, "grammar_failed", "invalid_request_error"),
        ("numerical_error", 500, "numerical_error", "server_error"),
        ("poison", 500, "poison", "server_error"),
        (None, 500, "internal_error", "server_error"),
    ],
)
def test_errors_of_jobs(code: str | None, status: int, openai_code: str, kind: str) -> None:
    error = error_of_job(code, "why")
    assert error.status == status
    assert error.body()["error"]["message"] == "why"
    assert (error.body()["error"]["code"], error.body()["error"]["type"]) == (openai_code, kind)


@pytest.mark.parametrize(
    ("error", "status", "param"),
    [
        (InvalidJob("top_k", "is below 0"), 400, "top_k"),
        (InvalidJob("payload", "is too large"), 400, None),
        (TryLater("Redis is full"), 503, None),
        (ServiceUnavailable("cannot reach Redis"), 503, None),
        (ConfigurationError("x"), 400, None),
    ],
)
def test_errors_of_ours(error: PagemillError, status: int, param: str | None) -> None:
    api_error = error_of(error)
    assert (api_error.status, api_error.param, api_error.message) == (status, param, str(error))


def test_an_echoed_prompt_has_its_log_probabilities_before_the_outputs() -> None:
    value = {
        "text": "ab",
        "finish_reason": "length",
        "prompt_logprobs": [{"token": "a", "token_id": 1, "logprob": None, "top_logprobs": []}],
        "logprobs": [
            {
                "token": "b",
                "token_id": 2,
                "logprob": -1.0,
                "top_logprobs": [{"token": "b", "token_id": 2, "logprob": -1.0}],
            }
        ],
    }
    (choice,) = completion(head(Endpoint.COMPLETIONS), choices_of(value, echo=True), USAGE)["choices"]
    assert choice["text"] == "ab"
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -1.0}],
        "text_offset": [0, 1],
    }
    (choice,) = completion(head(Endpoint.COMPLETIONS), choices_of(value, echo=False), USAGE)["choices"]
    assert choice["logprobs"]["tokens"] == ["b"]


def test_several_outputs_have_their_places() -> None:
    outputs = [{"text": text, "finish_reason": "stop"} for text in ("x", "y")]
    answer = completion(head(Endpoint.CHAT), choices_of({"choices": outputs}, echo=False), USAGE)
    assert [(choice["index"], choice["message"]["content"]) for choice in answer["choices"]] == [(0, "x"), (1, "y")]
