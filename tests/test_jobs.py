"""The payload's rules: what is refused, and that the message names the field and the limit."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from worker.errors import InvalidJob
from worker.jobs import MAX_PAYLOAD_BYTES, PromptJob, dump_job, parse_job


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

BAD_PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompt": ""}, "prompt: is empty"),
    "blank prompt": ({"prompt": " \n\t"}, "prompt: is empty"),
    "no prompt": ({}, "payload: exactly one of prompt and messages"),
    "prompt and messages": (
        {"prompt": "a", "messages": [{"role": "user", "content": "b"}]},
        "payload: exactly one of prompt and messages",
    ),
    "unknown field": ({"prompt": "a", "max_token": 5}, "max_token: unknown field; the fields are schema_version, "),
    "unknown field of a message": (
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
        "messages.0.name: unknown field",
    ),
    "NaN temperature": ({"prompt": "a", "temperature": math.nan}, "temperature: Input should be a finite number"),
    "infinite temperature": ({"prompt": "a", "temperature": math.inf}, "temperature: Input should be a finite number"),
    "temperature as text": ({"prompt": "a", "temperature": "1"}, "temperature: Input should be a valid number"),
    "temperature above its limit": ({"prompt": "a", "temperature": 2.5}, "less than or equal to 2, got 2.5"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1, got 0"),
    "negative tokens": ({"prompt": "a", "max_tokens": -1}, "max_tokens: "),
    "tokens as a truth value": ({"prompt": "a", "max_tokens": True}, "max_tokens: Input should be a valid integer"),
    "a billion tokens": ({"prompt": "a", "max_tokens": 10**9}, "max_tokens: Input should be less than or equal to"),
    "minimum above maximum": ({"prompt": "a", "min_tokens": 9, "max_tokens": 8}, "min_tokens: 9 is above max_tokens 8"),
    "negative retries": ({"prompt": "a", "max_retries": -1}, "max_retries: "),
    "too many retries": ({"prompt": "a", "max_retries": 21}, "max_retries: Input should be less than or equal to 20"),
    "a deadline without a zone": (
        {"prompt": "a", "deadline": "2026-12-01T06:00:00"},
        "deadline: Input should have timezone info",
    ),
    "a deadline that is a span": ({"prompt": "a", "deadline": "10m"}, "deadline: is not an ISO 8601 time with a zone"),
    "a deadline that is a number": ({"prompt": "a", "deadline": 1700000000}, "deadline: Input should be a valid dat"),
    "a deadline that is digits": ({"prompt": "a", "deadline": "1700000000"}, "deadline: is not an ISO 8601"),
    "a deadline beyond all years": (
        {"prompt": "a", "deadline": "9999-12-31T23:59:59-14:00"},
        "deadline: is not within the years 1 to 9999 in UTC",
    ),
    "negative top_k": ({"prompt": "a", "top_k": -1}, "top_k: "),
    "top_p of zero": ({"prompt": "a", "top_p": 0.0}, "top_p: "),
    "empty stop string": ({"prompt": "a", "stop": [""]}, "stop.0: "),
    "too many stop strings": ({"prompt": "a", "stop": ["x"] * 17}, "stop: Tuple should have at most 16 items"),
    "a long stop string": ({"prompt": "a", "stop": ["x" * 257]}, "stop.0: String should have at most 256 characters"),
    "NUL": ({"prompt": "a\0b"}, "prompt: holds a NUL character at position 1"),
    "NUL in the metadata": ({"prompt": "a", "metadata": {"k": "\0"}}, "metadata: holds a NUL"),
    "lone surrogate": ({"prompt": "a\ud800"}, "prompt: holds a lone surrogate"),
    "lone surrogate in a message": ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages: holds a lone"),
    "a presence penalty above its limit": (
        {"prompt": "a", "presence_penalty": 2.1},
        "presence_penalty: Input should be",
    ),
    "a frequency penalty that is no number": (
        {"prompt": "a", "frequency_penalty": math.nan},
        "frequency_penalty: Input should be",
    ),
    "a repetition penalty of zero": ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty: Input should be"),
    "a bias above its limit": ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias.5: Input should be less than"),
    "a bias of a word": ({"prompt": "a", "logit_bias": {"the": 1}}, "logit_bias.the."),
    "too many biases": ({"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(301)), 1)}, "logit_bias: Dict"),
    "too many log-probabilities": ({"prompt": "a", "logprobs": True, "top_logprobs": 10**5}, "top_logprobs: Input"),
    "top_logprobs alone": ({"prompt": "a", "top_logprobs": 2}, "top_logprobs: 2 needs logprobs to be true"),
    "logprobs as a number": ({"prompt": "a", "logprobs": 3}, "logprobs: Input should be a valid boolean"),
    "an unknown form": ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format: Input tag 'xml'"),
    "a form without its schema": (
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema: Field required",
    ),
    "a schema that need not be followed": (
        {
            "prompt": "a",
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": False}},
        },
        "response_format.json_schema.strict: Input should be True",
    ),
    "a large schema": (
        {
            "prompt": "a",
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": "b" * 40_000}}},
        },
        "response_format.json_schema.schema: has 40009 characters as JSON; at most 32768 are accepted",
    ),
    "a schema nested beyond all measure": (
        {
            "prompt": "a",
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": nested(5000)}},
        },
        "payload: is not a JSON object",
    ),
    "a long regular expression": ({"prompt": "a", "regex": "x" * 32_769}, "regex: String should have at most 32768"),
    "two grammars": ({"prompt": "a", "regex": "a", "grammar": 'start: "a"'}, "regex: and grammar cannot both confine"),
    "a grammar without an end": ({"prompt": "a", "regex": "a", "ignore_eos": True}, "ignore_eos: cannot be kept with"),
    "a grammar and a shortest output": ({"prompt": "a", "regex": "a", "min_tokens": 3}, "min_tokens: cannot be kept"),
    "another schema": ({"schema_version": 2, "prompt": "a"}, "schema_version: Input should be 1, got 2"),
    "an unknown role": ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role: "),
    "a tool's message without its call": (
        {"messages": [{"role": "tool", "content": "a"}]},
        "messages.0.tool_call_id: belongs to a tool's message, and it needs one",
    ),
    "a call of the user's": (
        {"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]},
        "messages.0.tool_calls: belong to an assistant's message",
    ),
    "arguments that are no object": (
        {"messages": [{"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "[]"}}]}]},
        "messages.0.tool_calls.0.function.arguments: is not the text of a JSON object",
    ),
    "an assistant that says nothing": ({"messages": [{"role": "assistant"}]}, "messages.0.content: is required"),
    "two tools of one name": ({"prompt": "a", "tools": [TOOL, TOOL]}, "tools: has two functions called f"),
    "a tool of no name": ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.fun"),
    "too many tools": ({"prompt": "a", "tools": [TOOL] * 129}, "tools: Tuple should have at most 128 items"),
    "arguments that are a list": (
        {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
        "tools.0.function.parameters: is a schema of type 'array'; arguments are an object",
    ),
    "a choice of no tool": (
        {"prompt": "a", "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice: names g, which is not among the tools",
    ),
    "a choice among nothing": ({"prompt": "a", "tool_choice": "required"}, "tool_choice: needs tools to choose from"),
    "an unknown choice": ({"prompt": "a", "tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    "one call at a time, if any": (
        {"prompt": "a", "tools": [TOOL], "parallel_tool_calls": False},
        "parallel_tool_calls: false holds only where tool_choice is required",
    ),
    "strict where nothing is": (
        {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
        "tools: has the function f with strict true",
    ),
    "tools beside a form": ({"prompt": "a", "tools": [TOOL], "regex": "a"}, "regex: and tools cannot both say"),
    "tools without a template": ({"prompt": "a", "raw": True, "tools": [TOOL]}, "raw: takes a prompt only: tools need"),
    "NUL in a schema": (
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"\0": 1}}}},
        "response_format: holds a NUL character at position 0",
    ),
    "NUL in a tool": (
        {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f", "description": "a\0"}}]},
        "tools: holds a NUL character at position 1",
    ),
    "no messages": ({"messages": []}, "messages: "),
    "raw messages": ({"raw": True, "messages": [{"role": "user", "content": "a"}]}, "raw: takes a prompt only"),
    "a tenant with a space": ({"prompt": "a", "tenant": "a b"}, "tenant: "),
    "a negative seed": ({"prompt": "a", "seed": -1}, "seed: "),
    "NUL in the model": ({"prompt": "a", "model": "\0"}, "model: holds a NUL"),
    "a huge batch": ({"prompt": "a", "batch_size": 2**63}, "batch_size: Input should be less than or equal to"),
    "a huge token id": ({"prompt": "a", "stop_token_ids": [2**31]}, "stop_token_ids.0: Input should be less than or"),
    "a field that fakes a log line": ({"prompt": "a", "x\nINFO \x1b[2J": 1}, r"'x\nINFO \x1b[2J': unknown field"),
    "a field of a million characters": ({"prompt": "a", "x" * 1_000_000: 1}, f"'{'x' * 76}...: unknown field"),
    "a long entry of the metadata": ({"prompt": "a", "metadata": {"x" * 900_000: 1}}, "metadata.'xxx"),
    "thousands of bad messages": ({"messages": [{"a": 1}] * 1024}, "messages.0.role: Field required"),
    "nested beyond all measure": ({"prompt": "a", "metadata": nested(400)}, "payload: Invalid JSON: recursion limit"),
    "a number of 5,000 digits": ({"prompt": "a", "max_tokens": 10**5000}, "payload: is not a JSON object: Exceeds"),
    "something that is not JSON": ({"prompt": "a", "metadata": {"k": object()}}, "payload: is not a JSON object"),
}


@pytest.mark.parametrize(("payload", "message"), BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)
def test_refuses_with_field_and_limit(payload: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_job(payload)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("character", ["a", "é", "🙂"])
def test_limits_the_payload_in_bytes(character: str) -> None:
    overhead = len('{"prompt": ""}')
    fits = (MAX_PAYLOAD_BYTES - overhead) // len(character.encode())
    assert parse_job({"prompt": character * fits}).prompt is not None
    with pytest.raises(InvalidJob, match=rf"payload: has \d+ bytes; at most {MAX_PAYLOAD_BYTES} are accepted"):
        parse_job({"prompt": character * (fits + 1)})


def test_dumps_only_what_differs_from_the_defaults_and_reads_it_back() -> None:
    job = parse_job({"prompt": "Grüße 🙂", "stop": ["\n"], "temperature": 1, "metadata": {"page": "7"}})
    payload = dump_job(job)
    assert payload == {
        "schema_version": 1,
        "prompt": "Grüße 🙂",
        "stop": ["\n"],
        "temperature": 1.0,
        "metadata": {"page": "7"},
    }
    assert parse_job(payload) == job


def test_what_confines_an_output_is_dumped_as_it_came() -> None:
    schema = {"type": "object", "properties": {"größe": {"type": "number"}}}
    conversation = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "\\u0000"},
    ]
    offered = {"schema_version": 1, "messages": conversation, "tools": [TOOL], "tool_choice": "required"}
    assert dump_job(parse_job(offered)) == offered
    sampler = {"logprobs": True, "top_logprobs": 3, "logit_bias": {"12": -4.5}, "frequency_penalty": 0.5}
    for form in (
        {"regex": "a|b"},
        {"grammar": 'start: "a"'},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
    ):
        payload = {"schema_version": 1, "prompt": "a", **sampler, **form}
        job = parse_job(payload)
        assert dump_job(job) == payload
        assert parse_job(dump_job(job)) == job


def test_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        PromptJob(prompt="a").prompt = "b"


def test_deadline_in_any_zone_is_kept_in_utc() -> None:
    for deadline in ("2026-12-01T06:00:00+02:00", datetime(2026, 12, 1, 6, tzinfo=timezone(timedelta(hours=2)))):
        job = parse_job({"prompt": "a", "deadline": deadline})
        assert job.deadline == datetime(2026, 12, 1, 4, tzinfo=UTC)
        assert dump_job(job)["deadline"] == "2026-12-01T04:00:00Z"
    with pytest.raises(InvalidJob, match="deadline: Input should have timezone info"):
        parse_job({"prompt": "a", "deadline": datetime(2026, 12, 1, 6)})
    with pytest.raises(InvalidJob, match="payload: is not a JSON object: Object of type timedelta"):
        parse_job({"prompt": "a", "deadline": timedelta(minutes=10)})
