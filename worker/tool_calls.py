"""The calls of tools in an output: found in the two forms that models write them in, and told as OpenAI does.

One is Hermes's, which Qwen and others share: JSON with `name` and `arguments` between `<tool_call>` and `</tool_call>`.
The other is Llama 3's: an output that is nothing but JSON with `name` and `parameters`. What is in neither form, or
calls what was not offered, stays text. Nothing of an output is lost: it is in a call, in the content, or both.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.tools import FUNCTION_NAME_PATTERN, no_constant

TOOL_CALLS_REASON = "tool_calls"  # the finish reason of an output that calls tools
OPENING, CLOSING = "<tool_call>", "</tool_call>"
_NAME = re.compile(FUNCTION_NAME_PATTERN)
LLAMA_MARK = "<|python_tag|>"  # may stand before Llama's form, where special tokens are kept


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallingOutput:
    """An output that calls tools: what it says beside that, which may be nothing, and the calls in their order."""

    content: str
    calls: tuple[Call, ...]


def read_output(text: str, names: Collection[str] | None = None) -> CallingOutput | None:
    """Return an output's calls of the tools `names`, of any where that is None; None where it makes none."""
    found = _tagged(text, names) if OPENING in text else _bare(text, names)
    return found if found is not None and found.calls else None


def call_objects(calls: tuple[Call, ...], job_id: str, index: int) -> list[dict[str, Any]]:
    """Return the calls of a job's output as OpenAI's objects. Their ids are the same whenever it is read."""
    return [
        {
            "id": f"call_{hashlib.sha256(f'{job_id}/{index}/{number}'.encode()).hexdigest()[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]


def calling_fields(text: str, job_id: str, index: int = 0) -> dict[str, Any]:
    """Return `content` (None where there is none) and `tool_calls` of a job's output that is known to make calls."""
    found = read_output(text)
    if found is None:
        return {}
    return {"content": found.content or None, "tool_calls": call_objects(found.calls, job_id, index)}


def _tagged(text: str, names: Collection[str] | None) -> CallingOutput:
    head, *parts = text.split(OPENING)
    content, calls = head.rstrip(), []
    for part in parts:
        body, mark, after = part.partition(CLOSING)
        call = _call(_json(body), "arguments", names) if mark else None
        if call is None:
            content += OPENING + part.rstrip()
        else:
            calls.append(call)
            content += after.rstrip()
    return CallingOutput(content, tuple(calls))


def _bare(text: str, names: Collection[str] | None) -> CallingOutput | None:
    calls = [_call(value, "parameters", names) for value in _several_json(text.removeprefix(LLAMA_MARK))]
    known = tuple(call for call in calls if call is not None)
    return CallingOutput("", known) if len(known) == len(calls) else None


def _several_json(text: str) -> Iterator[Any]:
    """Yield the JSON objects that a text is nothing but, with semicolons between them."""
    decoder = json.JSONDecoder(parse_constant=no_constant)
    rest = text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        rest = rest[end:].lstrip().removeprefix(";").lstrip()


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


def _call(value: Any, arguments_field: str, names: Collection[str] | None) -> Call | None:
    if not isinstance(value, Mapping) or value.keys() != {"name", arguments_field}:
        return None
    name, arguments = value["name"], value[arguments_field]
    if not isinstance(name, str) or not isinstance(arguments, Mapping) or not _NAME.fullmatch(name):
        return None
    if names is not None and name not in names:
        return None
    return Call(name, _dumped(arguments))


def _dumped(arguments: Mapping[str, Any]) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # an escape in the output stands for half of a character
        return json.dumps(arguments)
    return text
