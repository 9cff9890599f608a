"""Request bodies of OpenAI's clients: what becomes a job, and what is refused with its name."""

import json
from typing import Any

import pytest

from worker.jobs import parse_job
from worker.openai_api.errors import RequestRefused
from worker.openai_api.fields import DEFAULTS, FIELDS, Endpoint
from worker.openai_api.requests import parse_endpoint, parse_request

HELLO = [{"role": "user", "content": "Hello"}]
CHAT: dict[str, Any] = {"model": "m", "messages": HELLO}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Once upon"}


def chat(**fields: Any) -> dict[str, Any]:
    return dict(parse_request(Endpoint.CHAT, {**CHAT, **fields}).payload)


def text(**fields: Any) -> dict[str, Any]:
    return dict(parse_request(Endpoint.COMPLETIONS, {**TEXT, **fields}).payload)


def test_a_chat_has_openais_defaults() -> None:
    assert chat() == {
        "schema_version": 1,
        "model": "m",
        "messages": HELLO,
        "temperature": 1.0,
        "max_tokens": None,  # what fits
    }


def test_a_completion_is_continued_as_it_is() -> None:
    expected = {"prompt": "Once upon", "raw": True, "model": "m", "temperature": 1.0, "max_tokens": 16}
    assert text() == {"schema_version": 1, **expected}
    assert text(prompt=["Once upon"]) == text()


def test_every_field_that_is_known_arrives() -> None:
    payload = chat(
        max_completion_tokens=9,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        stop="END",
        seed=7,
        metadata={"run": "a"},
        user="u-1",
        safety_identifier="s-1",
        top_k=4,
        min_p=0.1,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[3],
        return_token_ids=True,
    )
    assert payload == {
        "schema_version": 1,
        "model": "m",
        "messages": HELLO,
        "max_tokens": 9,
        "top_p": 0.5,
        "stop": ["END"],
        "seed": 7,
        "metadata": {"run": "a", "user": "u-1", "safety_identifier": "s-1"},
        "top_k": 4,
        "min_p": 0.1,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [3],
        "return_token_ids": True,
    }
    assert parse_job(payload).temperature == 0.0


def test_messages_as_clients_write_them() -> None:
    returned: dict[str, Any] = {
        "role": "assistant",
        "content": "Yes",
        "refusal": None,
        "tool_calls": [],
        "annotations": [],
    }
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": parts}, returned]
    assert chat(messages=messages)["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "a b"},
        {"role": "assistant", "content": "Yes"},
    ]


def test_several_outputs() -> None:
    assert chat(n=3)["n"] == 3
    assert {name: text(n=2, best_of=4)[name] for name in ("n", "best_of")} == {"n": 2, "best_of": 4}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 3, "best_of": 2}, "best_of: 2 is below n, which is 3"),
        ({"best_of": 17}, "best_of: Input should be less than or equal to 16, got 17"),
        ({"best_of": 2, "stream": True}, "2 is not supported with stream: which outputs are best"),
    ],
)
def test_best_of_that_cannot_be_served(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as raised:
        text(**fields)
    assert raised.value.error.param == "best_of"


def test_echo_with_logprobs_asks_for_those_of_the_prompt() -> None:
    asked = text(echo=True, logprobs=3)
    assert (asked["echo"], asked["prompt_logprobs"], asked["top_logprobs"]) == (True, 3, 3)
    assert "prompt_logprobs" not in text(echo=True)
    assert text(prompt_logprobs=0)["prompt_logprobs"] == 0
    assert text(echo=True, stream=True)["echo"]
    with pytest.raises(RequestRefused, match="logprobs: is not supported with stream"):
        text(echo=True, logprobs=3, stream=True)


def test_null_is_as_good_as_absent() -> None:
    assert chat(**dict.fromkeys(FIELDS[Endpoint.CHAT].keys() - CHAT.keys())) == chat()
    assert text(**dict.fromkeys(FIELDS[Endpoint.COMPLETIONS].keys() - TEXT.keys())) == text()


def test_what_asks_for_what_is_done_anyway_changes_nothing() -> None:
    idle: dict[str, Any] = {
        "n": 1,
        "logprobs": False,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "service_tier": "auto",
        "store": False,
        "stream": False,
    }
    assert chat(**idle) == chat()


def test_what_a_sampler_is_asked_becomes_the_jobs() -> None:
    asked: dict[str, Any] = {
        "frequency_penalty": 0.5,
        "presence_penalty": -1.0,
        "logit_bias": {"7": -100.0},
        "repetition_penalty": 1.5,
        "logprobs": True,
        "top_logprobs": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    }
    assert chat(**asked).items() >= asked.items()
    assert text(logprobs=2).items() >= {"logprobs": True, "top_logprobs": 2}.items()


def test_defaults_of_the_service_give_way_and_its_own_fields_hold() -> None:
    defaults, extra = {"max_tokens": 40}, {"tenant": "acme", "custom_id": "c"}
    parsed = parse_request(Endpoint.CHAT, CHAT, defaults=defaults, extra=extra)
    assert (parsed.payload["max_tokens"], parsed.payload["tenant"]) == (40, "acme")
    parsed = parse_request(Endpoint.CHAT, {**CHAT, "max_tokens": 3}, defaults=defaults, extra=extra)
    assert parsed.payload["max_tokens"] == 3


def test_streaming_is_the_services_to_do() -> None:
    parsed = parse_request(Endpoint.CHAT, {**CHAT, "stream": True, "stream_options": {"include_usage": True}})
    assert (parsed.stream, parsed.include_usage) == (True, True)
    assert not parse_request(Endpoint.CHAT, CHAT).stream


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"n": 10**9}, "n", "n: Input should be less than or equal to 16, got 1000000000"),
        ({"n": True}, "n", "n: Input should be a valid integer, got True"),
        ({"best_of": 2}, "best_of", "is not supported"),
        ({"echo": True}, "echo", "is not supported"),
        ({"logprobs": 2}, "logprobs", "logprobs: Input should be a valid boolean, got 2"),
        ({"logprobs": True, "stream": True}, "logprobs", "logprobs: is not supported with stream"),
        ({"return_token_ids": True, "stream": True}, "return_token_ids", "is not supported with stream"),
        ({"top_logprobs": 2}, "top_logprobs", "2 needs logprobs to be true"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "less than or equal to 2, got 2.5"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]", "String should match pattern"),
        ({"response_format": {"type": "xml"}}, "response_format", "Input tag 'xml'"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "and regex cannot both"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "Field required"),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools.0.type", "Input should be 'function'"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools to choose from"),
        ({"audio": {}}, "audio", "audio: is not supported"),
        ({"temperatur": 1}, None, "unknown field 'temperatur' for /v1/chat/completions; did you mean temperature?"),
        ({"prompt": "x"}, None, "unknown field 'prompt' for /v1/chat/completions"),
        ({"temperature": 2.5}, "temperature", "temperature: Input should be less than or equal to 2, got 2.5"),
        ({"temperature": "hot"}, "temperature", "should be a valid number"),
        ({"temperature": float("nan")}, "temperature", "finite number, got NaN"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "6 contradicts 5"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "min_tokens: 6 is above max_tokens 5"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"stop": 5}, "stop", "stop: Input should be"),
        ({"user": 5}, "user", "user: must be a text, got 5"),
        ({"user": "u", "metadata": {"user": "other"}}, "metadata", "metadata has another value for 'user'"),
        ({"metadata": "x"}, "metadata", "should be an object"),
        ({"stream": "yes"}, "stream", "must be true or false, got 'yes'"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream to be true"),
        ({"messages": []}, "messages", "must be a list of at least one message"),
        ({"messages": "hello"}, "messages", "must be a list of at least one message, got 'hello'"),
        ({"messages": ["hello"]}, "messages.0", "must be an object with role and content"),
        (
            {"messages": [*HELLO, {"role": "tool", "content": "x"}]},
            "messages.1.tool_call_id",
            "belongs to a tool's message, and it needs one",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "must be a text or a list of text parts, got None"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content", "at least 1 character"),
        ({"messages": [{**HELLO[0], "name": "bob"}]}, "messages.0.name", "'bob' is not supported"),
        ({"messages": [{**HELLO[0], "mood": 1}]}, "messages.0", "unknown field 'mood'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0", "only text is"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text", "got None"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]},
            "messages.0.tool_calls.0",
            "got 1",
        ),
        ({"messages": [{"role": "user", "content": "a\x00b"}]}, "messages", "NUL character at position 1"),
        ({"messages": None}, "messages", "messages: is required"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else None,
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], param: str | None, words: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        parse_request(Endpoint.CHAT, {**CHAT, **fields})
    error = caught.value.error
    assert (error.status, error.param) == (400, param)
    assert words in error.message
    assert error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ["a", "b"]}, "prompt: must be one text"),
        ({"prompt": [1, 2]}, "prompt: must be one text, got [1, 2]"),
        ({"prompt": "  "}, "prompt: is empty"),
        ({"echo": 1}, "echo: Input should be a valid boolean, got 1"),
        ({"logprobs": True}, "logprobs: must be a whole number, got True"),
        ({"logprobs": 21}, "logprobs: must be between 0 and 20, got 21"),
        ({"messages": HELLO}, "unknown field 'messages'"),
    ],
)
def test_completions_that_cannot_be_done_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        text(**fields)
    assert words in caught.value.error.message


@pytest.mark.parametrize("body", [None, [], "x", 5])
def test_a_body_is_an_object(body: object) -> None:
    with pytest.raises(RequestRefused, match="the body must be a JSON object"):
        parse_request(Endpoint.CHAT, body)


@pytest.mark.parametrize("url", ["/v1/embeddings", "", None, 5])
def test_other_endpoints_are_refused(url: object) -> None:
    with pytest.raises(RequestRefused, match="is not served; the endpoints are /v1/chat/completions, /v1/completions"):
        parse_endpoint(url)
    assert parse_endpoint("/v1/completions") is Endpoint.COMPLETIONS


def test_every_endpoint_has_its_defaults() -> None:
    assert FIELDS.keys() == DEFAULTS.keys() == set(Endpoint)
