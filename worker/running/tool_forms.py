"""The forms in which models call tools, each as a grammar that an output which has to be a call follows."""

import json
from collections.abc import Container, Sequence
from enum import StrEnum
from typing import Any

from worker.jobs import PromptJob
from worker.tool_calls import CLOSING, OPENING
from worker.tools import Function, NamedTool

MAX_CALLS = 16  # in one output that has to be calls
WITHOUT_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class ToolForm(StrEnum):
    """How a call is written: `worker.tool_calls` reads both."""

    TAGGED = "arguments"  # Hermes's; the value is the name that arguments have in it
    BARE = "parameters"  # Llama 3's


def form_of(template: str) -> ToolForm | None:
    """Return the form that a chat template tells a model of; None for one that is not known."""
    if OPENING in template:
        return None if "<function=" in template else ToolForm.TAGGED
    return ToolForm.BARE if '"parameters":' in template and '"name":' in template else None


def call_grammar(job: PromptJob, form: ToolForm, whitespace: str, token_names: Container[str]) -> str:
    """Return the grammar, llguidance's kind of Lark, of the calls that a job's `tool_choice` asks for.

    Tags among `token_names` are one token each: the grammar has them as tokens, not as their letters.
    """
    chosen = _chosen(job)
    rules = [_rule(index, function, form, whitespace) for index, function in enumerate(chosen)]
    call = " | ".join(f"tool_{index}" for index in range(len(chosen)))
    if form is ToolForm.BARE:
        return "\n".join([f"start: {call}", *rules])
    is_single = isinstance(job.tool_choice, NamedTool) or job.parallel_tool_calls is False
    more = "" if is_single else f' ("\\n" call){{0,{MAX_CALLS - 1}}}'
    opening, closing = (tag if tag in token_names else f'"{tag}"' for tag in (OPENING, CLOSING))
    tagged = f'call: {opening} "\\n" ({call}) "\\n" {closing}'
    return "\n".join([f"start: call{more}", tagged, *rules])


def _chosen(job: PromptJob) -> Sequence[Function]:
    functions = [tool.function for tool in job.tools]
    if isinstance(job.tool_choice, NamedTool):
        return [function for function in functions if function.name == job.tool_choice.function.name]
    return functions


def _rule(index: int, function: Function, form: ToolForm, whitespace: str) -> str:
    head = json.dumps(f'{{"name": "{function.name}", "{form.value}": ')
    schema: dict[str, Any] = WITHOUT_ARGUMENTS if function.parameters is None else function.parameters
    guided = {"type": "object", **schema, "x-guidance": {"whitespace_pattern": whitespace}}
    return f'tool_{index}: {head} arguments_{index} "}}"\narguments_{index}: %json {json.dumps(guided)}'
