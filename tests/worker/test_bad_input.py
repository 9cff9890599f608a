"""Bad input of every kind has its right answer. This table says where each is tested; what no area owns is here.

| bad input | where |
|---|---|
| another function, pickles | tests/queue/test_dead_records.py, tests/functions/test_allow_list.py |
| a prompt that is too large, empty, NUL, lone surrogates | tests/test_jobs.py; the entry points below |
| a prompt longer than the context | tests/engine/test_aborts_and_limits.py, tests/serving/test_refusals.py |
| parameters out of range, stop strings, log-probabilities | tests/test_jobs.py, tests/openai_api/test_requests.py |
| log-probabilities of a prompt that are too many | tests/engine/test_prompt_scoring.py |
| token ids beyond the model's | tests/engine/test_aborts_and_limits.py |
| hostile expressions, grammars and schemas | tests/worker/test_grammars.py; their memory below |
| hostile chat templates | tests/worker/test_chat_template.py |
| pickled weights, a model's own code, files elsewhere | tests/engine/test_model_loader.py, test_model_folder.py |
| outputs that are code for somebody | tests/cli/test_output.py, tests/reports/test_page.py |
| secrets in URLs | tests/cli/test_secrets.py |
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import PreTrainedTokenizerFast

from tests.worker.tokenizers_at_hand import byte_level
from worker.batch.lines import RequestReader, RequestRules
from worker.batch.records import LineFault
from worker.cli.main import cli
from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.openai_api.errors import RequestRefused
from worker.openai_api.fields import Endpoint
from worker.openai_api.requests import parse_request
from worker.running.grammars import Grammars

# What is sent as a chat's body, and the field that every entry point names.
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": "a\ud800"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a\0"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 1_100_000}]}, "payload"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_k": -1}, "top_k"),
    ({"stop": ["x"] * 1_000}, "stop"),
    ({"stop": [""]}, "stop.0"),
    ({"stop_token_ids": [2**40]}, "stop_token_ids.0"),
    ({"logprobs": True, "top_logprobs": 10**5}, "top_logprobs"),
    ({"regex": "a" * 40_000}, "regex"),
]


@pytest.mark.parametrize(("body", "field"), BAD_BODIES, ids=lambda value: str(value)[:40])
def test_every_entry_names_the_field(body: dict[str, Any], field: str, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], **body}
    with pytest.raises(InvalidJob) as job:
        parse_job(chat)
    assert job.value.field == field
    with pytest.raises(RequestRefused) as request:
        parse_request(Endpoint.CHAT, chat)
    assert request.value.error.param == (None if field == "payload" else field)
    line = {"custom_id": "1", "method": "POST", "url": Endpoint.CHAT.value, "body": chat}
    (fault,) = RequestReader(RequestRules()).read(io.BytesIO(json.dumps(line).encode()))
    assert isinstance(fault, LineFault)
    file = tmp_path / "jobs.jsonl"
    file.write_text(json.dumps(chat))
    command = ["submit", "--jsonl", str(file), "--redis-url", "redis://127.0.0.1:1"]  # it must not come so far
    done = CliRunner().invoke(cli, command, env={"PAGEMILL_DATA_DIR": str(tmp_path)})
    assert done.exit_code == 2
    for message in (str(job.value), request.value.error.message, fault.message, done.stderr):
        assert field.split(".")[0] in message or field == "payload"
        assert len(message) < 700
        assert "Traceback" not in message


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_stays_flat_over_thousands_of_schemas() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), eos_token="</s>")
    grammars = Grammars(tokenizer, len(tokenizer), [int(tokenizer.eos_token_id or 0)])

    def compile_many(first: int, count: int) -> None:
        for number in range(first, first + count):
            schema = {"type": "object", "properties": {f"field_{number}": {"type": "string", "maxLength": number}}}
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            (grammar,) = grammars.compile(parse_job({"prompt": "x", "response_format": form}))
            assert grammar is not None
            grammar.allowed([])

    compile_many(1, 500)
    before = resident_bytes()
    compile_many(501, 2_000)
    assert resident_bytes() - before < 32 * 1024 * 1024
