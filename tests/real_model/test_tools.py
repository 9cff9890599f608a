"""Tools with SmolLM2-135M: refused by name with its own chat template, which tells of none; told of, called and
answered with one that does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import FinishReason, SamplingParams
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.running.tokenizing import Tokenizer
from worker.tool_calls import read_output

pytestmark = pytest.mark.model

CITY = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Lyon"]}}, "required": ["city"]}
STRICT = {**CITY, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": STRICT}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASKS = {"role": "user", "content": "What is the weather in Lyon?"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lyon"}'}}
TALK = [ASKS, {"role": "assistant", "tool_calls": [CALLED]}, {"role": "tool", "tool_call_id": "c1", "content": "fog"}]
# As Hermes's models are told of tools: ChatML, which SmolLM2's turns are, with a system turn that has them.
HERMES = (
    "{% if tools %}<|im_start|>system\nYou may call functions:\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n"
    '{% endfor %}</tools>\nFor a call return <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>\n'
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    '{% for call in message.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\n' }}"
)


@pytest.fixture(scope="module")
def loaded(smollm2_gguf: Path) -> LoadedModel:
    cache_dir = smollm2_gguf.parent / "converted"
    return load_model(str(smollm2_gguf), dtype=torch.float32, device=torch.device("cpu"), cache_dir=cache_dir)


@pytest.fixture(scope="module")
def own(loaded: LoadedModel) -> Tokenizer:
    return Tokenizer(loaded.folder)


@pytest.fixture(scope="module")
def told(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The model's tokenizer with a template that tells of tools."""
    folder = tmp_path_factory.mktemp("told")
    for file in Path(loaded.folder).glob("tokenizer*"):
        shutil.copy(file, folder)
    (folder / "chat_template.jinja").write_text(HERMES)
    return Tokenizer(str(folder))


def prompt_of(tokenizer: Tokenizer, **fields: Any) -> str:
    return tokenizer.detokenizer(tokenizer.encode(parse_job(fields)), skip_special_tokens=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"messages": [ASKS], "tools": [WEATHER]},
            "tools: this model's chat template does not tell the model of tools",
        ),
        ({"messages": [ASKS], "tools": [WEATHER], "tool_choice": "required"}, "tools: this model's chat template"),
        ({"messages": TALK}, "messages: tool_calls are left out by this model's chat template"),
    ],
)
def test_own_template_has_them_refused(own: Tokenizer, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=f"^{message}"):
        own.encode(parse_job(fields))


def test_own_template_without_them(own: Tokenizer) -> None:
    plain = prompt_of(own, messages=[ASKS])
    assert plain.endswith("<|im_start|>user\nWhat is the weather in Lyon?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt_of(own, messages=[ASKS], tools=[WEATHER], tool_choice="none") == plain


def test_what_reaches_the_prompt(told: Tokenizer) -> None:
    prompt = prompt_of(told, messages=TALK, tools=[WEATHER, CLOCK])
    head, _, turns = prompt.partition("</tools>")
    listed = [json.loads(line) for line in head.partition("<tools>\n")[2].splitlines()]
    assert listed == [WEATHER, CLOCK]
    assert turns.endswith(
        "<|im_start|>user\nWhat is the weather in Lyon?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Lyon"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>tool\nfog<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_that_has_to_be_is_one(loaded: LoadedModel, told: Tokenizer, choice: Any) -> None:
    job = parse_job(
        {"messages": [ASKS], "tools": [CLOCK, WEATHER], "tool_choice": choice, "parallel_tool_calls": False}
    )
    config = EngineConfig(num_blocks=64, max_model_len=1024, max_num_seqs=4, token_budget=256)
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size)
    engine = Engine(config, runner, loaded.identity, told.detokenizer)
    (grammar,) = told.grammars(loaded.identity.vocab_size, loaded.identity.stop_token_ids).compile(job)
    request = engine.add("r", told.encode(job), SamplingParams(max_tokens=60), grammar=grammar)
    while engine.has_work:
        engine.step()
    assert request.finish_reason is FinishReason.STOP
    found = read_output(told.detokenizer(request.output_token_ids), {"weather", "clock"})
    assert found is not None
    (call,) = found.calls
    assert found.content == ""
    if choice != "required":
        assert call.name == "weather"
    assert json.loads(call.arguments).get("city", "Bonn") in ("Bonn", "Lyon")
