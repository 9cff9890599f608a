"""Batch files whose requests have tools, to their results: what reaches the prompt, the calls that come back, and what
is refused by name."""

import json
from pathlib import Path
from typing import Any

import redis

from tests.serving.conftest import Serve
from tests.worker.fakes import EOS, ScriptedRunner, eventually, make_flow, running
from tests.worker.test_tools import SILENT, TAGGED, WEATHER, with_template
from worker.jobs import PromptJob
from worker.running.tokenizing import Tokenizer
from worker.sql.store import JobStore

ENDPOINT: Any = "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>'
ASKS = {"role": "user", "content": "Is it raining in Bonn?"}


def reply(prompt: str) -> str:
    """Answer as a model would that calls what it was told of, and reads what that gave."""
    if "[tool] drizzle" in prompt:
        return "It drizzles."
    return f"Let me see.\n{CALL}" if "You may call:" in prompt else "I cannot know."


def run_batch(
    connection: redis.Redis, store: JobStore, serving: Serve, tokenizer: Tokenizer, bodies: dict[str, dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Run requests by custom id; return the bodies of the answers and of the errors by it, and the prompts."""

    def encode(job: PromptJob) -> list[int]:
        return list(tokenizer.detokenizer(tokenizer.encode(job), skip_special_tokens=False).encode())

    lines = [
        {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {"model": "scripted", **body}}
        for name, body in bodies.items()
    ]
    runner = ScriptedRunner(reply=reply)
    with running(make_flow(connection, store, runner, encode=encode)), serving() as served:
        client = served.client()
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        eventually(lambda: client.batches.retrieve(batch.id).status == "completed")
        ended = client.batches.retrieve(batch.id)
        files = [
            "" if file_id is None else client.files.content(file_id).text
            for file_id in (ended.output_file_id, ended.error_file_id)
        ]
    done, failed = (
        {one["custom_id"]: one["response"]["body"] for one in map(json.loads, f.splitlines())} for f in files
    )
    return done, failed, runner.order


def test_tools_reach_the_prompt_and_calls_come_back(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, tmp_path: Path
) -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    talk = [ASKS, {"role": "assistant", "content": None, "tool_calls": [called]}]
    bodies = {
        "told": {"messages": [ASKS], "tools": [WEATHER]},
        "twice": {"messages": [ASKS], "tools": [WEATHER], "n": 2},
        "untold": {"messages": [ASKS], "tools": [WEATHER], "tool_choice": "none"},
        "ids": {"messages": [ASKS], "n": 2, "return_token_ids": True},
        "result": {
            "messages": [*talk, {"role": "tool", "tool_call_id": "c1", "content": "drizzle"}],
            "tools": [WEATHER],
        },
        "broken": {"messages": [ASKS], "tools": [{"type": "function", "function": {"name": "no spaces"}}]},
    }
    tokenizer = with_template(TAGGED, tmp_path)
    done, failed, prompts = run_batch(connection, sqlite_store, serving, tokenizer, bodies)
    for name, number in (("told", 1), ("twice", 2)):
        choices = done[name]["choices"]
        assert len(choices) == number
        for choice in choices:
            assert choice["finish_reason"] == "tool_calls"
            assert choice["message"]["content"] == "Let me see."
            (call,) = choice["message"]["tool_calls"]
            assert call["function"] == {"name": "weather", "arguments": '{"city": "Bonn"}'}
    assert done["untold"]["choices"][0]["message"]["content"] == "I cannot know."
    assert done["ids"]["prompt_token_ids"] == list(b"[user] Is it raining in Bonn?\n[assistant] ")
    assert [choice["token_ids"] for choice in done["ids"]["choices"]] == [[*b"I cannot know.", EOS]] * 2
    assert "prompt_token_ids" not in done["untold"]
    assert "token_ids" not in done["untold"]["choices"][0]
    assert done["result"]["choices"][0]["message"]["content"] == "It drizzles."
    assert "tool_calls" not in done["result"]["choices"][0]["message"]
    assert failed["broken"]["error"]["param"] == "tools.0.function.name"
    untold = {prompt for prompt in prompts if "You may call:" not in prompt}
    assert untold == {"[user] Is it raining in Bonn?\n[assistant] "}
    (result,) = [prompt for prompt in prompts if "drizzle" in prompt]
    assert json.dumps(WEATHER, ensure_ascii=False) in result
    assert '<tool_call>weather {"city": "Bonn"}</tool_call>\n[tool] drizzle\n[assistant] ' in result


def test_tools_that_the_template_leaves_out_are_errors(
    connection: redis.Redis, sqlite_store: JobStore, serving: Serve, tmp_path: Path
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "told": {"messages": [ASKS], "tools": [WEATHER]},
        "untold": {"messages": [ASKS], "tools": [WEATHER], "tool_choice": "none"},
    }
    done, failed, prompts = run_batch(connection, sqlite_store, serving, with_template(SILENT, tmp_path), bodies)
    assert done.keys() == {"untold"}
    assert prompts == ["[user] Is it raining in Bonn?\n[assistant] "]
    error = failed["told"]["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    assert "tools: this model's chat template does not tell the model of tools" in error["message"]
