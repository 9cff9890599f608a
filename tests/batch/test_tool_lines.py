"""Lines of a batch that have tools: what the template makes of them, and which are refused, before anything runs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker.test_tools import CALLED, CLOCK, SILENT, TAGGED, TALK, WEATHER, with_template
from worker.batch.estimating import BYTES_PER_TOKEN, Estimate, TokenCounter
from worker.batch.lines import RequestReader, RequestRules
from worker.batch.records import LineFault
from worker.running.tokenizing import Tokenizer

ASKS: Any = {"messages": [{"role": "user", "content": "Is it raining?"}]}


def estimated(body: dict[str, Any], tokenizer: Tokenizer | None = None) -> Estimate | LineFault:
    """Return what `pagemill batch run --dry-run` makes of one line, by the model's tokenizer where that is at hand."""
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (read,) = RequestReader(RequestRules()).read(io.BytesIO(json.dumps(line).encode()))
    if isinstance(read, LineFault):
        return read
    estimate = Estimate(TokenCounter("for tests", None if tokenizer is None else tokenizer.encode), None)
    return estimate.take(read) or estimate


def prompt_tokens(body: dict[str, Any], tokenizer: Tokenizer | None = None) -> int:
    estimate = estimated(body, tokenizer)
    assert isinstance(estimate, Estimate)
    return estimate.prompt_tokens


def test_tools_count_where_the_tokenizer_is_at_hand(tmp_path: Path) -> None:
    tokenizer = with_template(TAGGED, tmp_path)
    plain, told = prompt_tokens(ASKS, tokenizer), prompt_tokens({**ASKS, "tools": [WEATHER, CLOCK]}, tokenizer)
    assert told > plain + 100
    assert prompt_tokens({**ASKS, "tools": [WEATHER], "tool_choice": "none"}, tokenizer) == plain
    assert prompt_tokens({"messages": TALK}, tokenizer) > plain


def test_tools_and_calls_count_where_it_is_not() -> None:
    plain = prompt_tokens(ASKS)
    size = len(json.dumps([WEATHER], ensure_ascii=False).encode())
    assert prompt_tokens({**ASKS, "tools": [WEATHER]}) == pytest.approx(plain + size / BYTES_PER_TOKEN, abs=1)
    assert prompt_tokens({**ASKS, "tools": [WEATHER], "tool_choice": "none"}) == plain
    calls = len(json.dumps([CALLED]).encode()) + len("drizzle")
    assert prompt_tokens({"messages": TALK}) == pytest.approx(plain + calls / BYTES_PER_TOKEN, abs=1)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({**ASKS, "tools": [WEATHER]}, "tools", "this model's chat template does not tell the model of tools"),
        ({"messages": TALK}, "messages", "tool_calls are left out by this model's chat template"),
        ({**ASKS, "tools": [{"type": "web_search"}]}, "tools.0.type", "'function'"),
        ({**ASKS, "tools": [WEATHER, WEATHER]}, "tools", "weather"),
        ({**ASKS, "tool_choice": "required"}, "tool_choice", "tools"),
        ({**ASKS, "functions": [WEATHER["function"]]}, "functions", "not supported"),
        ({**ASKS, "function_call": {"name": "weather"}}, "function_call", "not supported"),
        ({**ASKS, "tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format", "and tools"),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path: Path, body: dict[str, Any], param: str, message: str) -> None:
    fault = estimated(body, with_template(SILENT, tmp_path))
    assert isinstance(fault, LineFault)
    assert fault.param == param
    assert message in fault.message
