"""Tools through the official client: called whole and streamed, sent back, and left alone."""

from typing import Any

import openai
import pytest
import redis

from tests.serving.conftest import Serve
from tests.serving.scripted import scripted, wait_for_worker
from tests.worker.fakes import ScriptedRunner
from worker.sql.store import JobStore

TOOLS: Any = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]
ASKS: Any = [{"role": "user", "content": "What time is it?"}]
CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "é"}}\n</tool_call>'


def says(text: str) -> ScriptedRunner:
    return ScriptedRunner(reply=lambda prompt: text if prompt != "noon" else "It is noon.", step_seconds=0.002)


def test_tool_is_called_and_its_result_sent_back(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve
) -> None:
    with scripted(connection, sqlite_store, says(f"Let me see.\n{CALL}")), serving() as served:
        wait_for_worker(sqlite_store)
        client = served.client()
        answer = client.chat.completions.create(model="scripted", messages=ASKS, tools=TOOLS)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        calls: Any = choice.message.tool_calls
        (call,) = calls
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("clock", '{"zone": "é"}')
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        messages: Any = [*ASKS, choice.message.model_dump(), result]
        second = client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("It is noon.", "stop")
        assert second.choices[0].message.tool_calls is None
        stored = sqlite_store.results([answer.id.removeprefix("chatcmpl-")])
        assert [(one.finish_reason, one.text) for one in stored.values()] == [("tool_calls", f"Let me see.\n{CALL}")]


@pytest.mark.parametrize(
    ("text", "content", "reason"),
    [
        (f"Let me see.\n{CALL}", "Let me see.", "tool_calls"),
        ('{"name": "clock", "parameters": {"zone": "é"}}', "", "tool_calls"),
        ("<tool_call>{broken</tool_call> <tool", "<tool_call>{broken</tool_call> <tool", "stop"),
        ('{"time": "noon"}', '{"time": "noon"}', "stop"),
    ],
)
def test_calls_are_streamed_and_nothing_is_lost(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, text: str, content: str, reason: str
) -> None:
    with scripted(connection, sqlite_store, says(text)), serving() as served:
        wait_for_worker(sqlite_store)
        stream = served.client().chat.completions.create(model="scripted", messages=ASKS, tools=TOOLS, stream=True)
        choices = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.delta.content or "" for choice in choices) == content
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert [(call.index, call.function and call.function.arguments) for call in calls] == (
        [(0, '{"zone": "é"}')] if reason == "tool_calls" else []
    )
    assert choices[-1].finish_reason == reason


def test_calls_of_several_outputs_are_streamed(connection: redis.Redis, sqlite_store: JobStore, serving: Serve) -> None:
    with scripted(connection, sqlite_store, says(f"Let me see.\n{CALL}")), serving() as served:
        wait_for_worker(sqlite_store)
        stream = served.client().chat.completions.create(model="scripted", messages=ASKS, tools=TOOLS, n=2, stream=True)
        choices = [chunk.choices[0] for chunk in stream]
    ids = set()
    for index in range(2):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in own) == "Let me see."
        (call,) = [call for choice in own for call in choice.delta.tool_calls or ()]
        assert (call.index, call.function and call.function.arguments) == (0, '{"zone": "é"}')
        ids.add(call.id)
        assert own[-1].finish_reason == "tool_calls"
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web"}]}, "tools.0.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template": "{{ 1 }}"}, None),  # templates come with the model
        ({"chat_template_kwargs": {}}, None),
    ],
)
def test_what_cannot_be_done_is_refused(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, fields: dict[str, Any], param: str | None
) -> None:
    with scripted(connection, sqlite_store), serving() as served:
        wait_for_worker(sqlite_store)
        with pytest.raises(openai.BadRequestError) as refused:
            served.client().chat.completions.create(model="scripted", messages=ASKS, extra_body=fields)
    assert refused.value.param == param
