"""Tools: told by the model's own template, called in forms that are known, and read without a loss."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from engine.grammar import Grammar
from tests.worker.tokenizers_at_hand import byte_level
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.openai_api.tool_stream import ToolStream
from worker.running.tokenizing import Tokenizer
from worker.tool_calls import Call, calling_fields, read_output

SILENT = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ '\n' }}{% endfor %}[assistant] "
TAGGED = (
    "{% if tools %}You may call:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Write <tool_call>\n{...}\n</tool_call>.\n{% endif %}"
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{{ '\n' }}{% endfor %}[assistant] "
)
BARE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Answer with {"name": ..., "parameters": ...}.\n{% endif %}' + SILENT
)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Bonn", "Köln"]}},
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "weather"}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Is it raining?"},
    {"role": "assistant", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "drizzle"},
]


def with_template(template: str, folder: Path) -> Tokenizer:
    fast = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    fast.save_pretrained(folder)
    return Tokenizer(str(folder))


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return with_template(TAGGED, tmp_path_factory.mktemp("tagged"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return with_template(BARE, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return with_template(SILENT, tmp_path_factory.mktemp("silent"))


def prompt_of(tokenizer: Tokenizer, **fields: Any) -> str:
    return tokenizer.detokenizer(tokenizer.encode(parse_job(fields)), skip_special_tokens=False)


def test_template_tells_of_tools_calls_and_results(tagged: Tokenizer) -> None:
    text = prompt_of(tagged, messages=TALK, tools=[WEATHER, CLOCK])
    assert '"description": "Tells the weather."' in text
    assert '<tool_call>weather {"city": "Bonn"}</tool_call>' in text
    assert text.endswith("[tool] drizzle\n[assistant] ")


def test_choice_of_none_leaves_tools_out(tagged: Tokenizer) -> None:
    text = prompt_of(tagged, prompt="hello", tools=[WEATHER], tool_choice="none")
    assert text == "[user] hello\n[assistant] "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "hello", "tools": [WEATHER]}, "tools: this model's chat template does not tell the model of tools"),
        ({"messages": TALK}, "messages: tool_calls are left out by this model's chat template"),
    ],
)
def test_what_a_template_would_leave_out_is_refused(silent: Tokenizer, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{message}"):
        silent.encode(parse_job(fields))


def test_choice_in_a_form_that_nobody_knows_is_refused(silent: Tokenizer) -> None:
    with pytest.raises(InvalidJob, match="tool_choice: this model's chat template has no form of calls that is known"):
        grammar_of(silent, tool_choice="required")


def grammar_of(tokenizer: Tokenizer, **fields: Any) -> Grammar:
    job = parse_job({"prompt": "hello", "tools": [WEATHER, CLOCK], **fields})
    end = tokenizer._encoder.eos_token_id
    (grammar,) = tokenizer.grammars(len(tokenizer._encoder), [end]).compile(job)
    assert grammar is not None
    return grammar


def walk(tokenizer: Tokenizer, grammar: Grammar, seed: int) -> str:
    """Return a random output that the grammar allows."""
    draw, output = random.Random(seed), list[int]()
    while True:
        choices = np.flatnonzero(grammar.allowed(output)[: len(tokenizer._encoder)]).tolist()
        texts = {token: tokenizer.detokenizer([token], skip_special_tokens=False) for token in choices}
        token = draw.choice([token for token in choices if texts[token].strip()] or choices)
        if token == tokenizer._encoder.eos_token_id:
            return tokenizer.detokenizer(output)
        output.append(token)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["tagged", "bare"])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_output_that_has_to_be_a_call_is_one(
    request: pytest.FixtureRequest, kind: str, choice: object, seed: int
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    text = walk(tokenizer, grammar_of(tokenizer, tool_choice=choice, parallel_tool_calls=False), seed)
    found = read_output(text, {"weather", "clock"})
    assert found is not None
    (call,) = found.calls
    assert found.content == ""
    if call.name == "weather":
        assert json.loads(call.arguments)["city"] in ("Bonn", "Köln")
    else:
        assert (call.arguments, choice) == ("{}", "required")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>', "", [Call("f", '{"a": "é"}')]),
        (
            'Let me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
            '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
            "Let me see.",
            [Call("f", "{}"), Call("g", "{}")],
        ),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{broken</tool_call> so',
            "<tool_call>{broken</tool_call> so",
            [Call("f", "{}")],
        ),
        ('{"name": "f", "parameters": {"a": 1}}', "", [Call("f", '{"a": 1}')]),
        (
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
            "",
            [Call("f", "{}"), Call("g", "{}")],
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "", [Call("f", '{"a": "\\ud800"}')]),
    ],
)
def test_calls_are_read(text: str, content: str, calls: list[Call]) -> None:
    found = read_output(text, {"f", "g"})
    assert found is not None
    assert (found.content, list(found.calls)) == (content, calls)
    found.calls[0].arguments.encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "<tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "more": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
        '{"name": "f", "arguments": {}}',
        '{"name": "f", "parameters": {}} and more',
        '{"answer": 42}',
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read_output(text, {"f"}) is None


def test_ids_of_calls_are_always_the_same() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    first, second = calling_fields(text, "job-1")["tool_calls"]
    assert first["id"] != second["id"]
    assert calling_fields(text, "job-1")["tool_calls"] == [first, second]
    assert calling_fields(text, "job-2")["tool_calls"] != [first, second]


WORDS = ("<", "<tool", " ", "\n", "text", "{", "<|python_tag|>", "<|")
CALLS = ('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {}}')
PIECES = st.sampled_from(["<tool_call>", "</tool_call>", *CALLS, *WORDS])


@given(pieces=st.lists(PIECES, max_size=8), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_stream_is_the_content_and_never_a_call(pieces: list[str], sizes: list[int]) -> None:
    text = "".join(pieces)
    stream, sent, place = ToolStream(), "", 0
    while place < len(text):
        size = sizes[place % len(sizes)]
        sent += stream.take(text[place : place + size])
        place += size
    calling = read_output(text, {"f"})
    content, calls = stream.rest("tool_calls" if calling else "stop", "j", 0)
    assert sent + content == (text if calling is None else calling.content)
    assert len(calls) == (len(calling.calls) if calling else 0)
