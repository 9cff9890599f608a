"""Reading a file of requests: what is a request, and what each line is at fault for."""

import io
import json
import tracemalloc
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.batch.line_set import LineSet
from worker.batch.lines import FAULTS_AT_ONCE, CheckedFile, RequestReader, RequestRules, check_file
from worker.batch.records import LineFault
from worker.jsonl import MAX_LINE_BYTES
from worker.openai_api.fields import Endpoint

BODY = {"messages": [{"role": "user", "content": "Hello"}]}


def request(custom_id: Any = "a", body: Any = BODY, **fields: Any) -> str:
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}
    return json.dumps(line)


def check(data: str | bytes, **rules: Any) -> tuple[CheckedFile, list[LineFault]]:
    faults: list[LineFault] = []
    file = io.BytesIO(data.encode() if isinstance(data, str) else data)
    checked = check_file(file, RequestReader(RequestRules(**rules)), faults.extend, lambda _: None)
    assert checked.num_faults == len(faults)
    return checked, faults


def fault_of(line: str | bytes, **rules: Any) -> LineFault:
    """Return the fault of a line between two good ones, which it does not harm."""
    data = line.encode() if isinstance(line, str) else line
    checked, (fault,) = check(b"\n".join([request("first").encode(), data, request("last").encode()]), **rules)
    assert list(checked.good) == [1, 3]
    assert fault.line == 2
    return fault


def test_a_file_of_good_lines() -> None:
    lines = [request("one"), "", "   ", request("two", {**BODY, "max_tokens": 4})]
    checked, faults = check("\ufeff" + "\r\n".join(lines) + "\r\n")
    assert faults == []
    assert (list(checked.good), checked.num_requests, checked.endpoint) == ([1, 4], 2, Endpoint.CHAT)


def test_a_request_becomes_a_job_with_the_rules_fields() -> None:
    rules = RequestRules(max_tokens=7, model="m2", extra={"tenant": "acme", "batch_id": "b"})
    (line,) = RequestReader(rules).read(io.BytesIO(request("c-1", {**BODY, "model": "gpt"}).encode()))
    assert not isinstance(line, LineFault)
    assert (line.line, line.custom_id) == (1, "c-1")
    expected: Mapping[str, Any] = {
        "schema_version": 1,
        "messages": BODY["messages"],
        "model": "m2",
        "tenant": "acme",
        "batch_id": "b",
        "custom_id": "c-1",
        "max_tokens": 7,
        "temperature": 1.0,
    }
    assert line.payload == expected


def test_lines_that_are_no_requests() -> None:
    assert "is not JSON: Expecting value at character 1" in fault_of("nonsense").message
    assert "is no JSON object but [1]" in fault_of("[1]").message
    assert "is not UTF-8: byte 0xff at position 1" in fault_of(b'"\xff"').message
    assert f"has more than {MAX_LINE_BYTES} bytes" in fault_of(b"x" * (2 * MAX_LINE_BYTES)).message
    assert "is not JSON" in fault_of("[" * 100_000).message


def test_fields_at_fault_are_named() -> None:
    cases = {
        request(custom_id=5): ("custom_id", "must be a text that is not empty, got 5"),
        request(custom_id=""): ("custom_id", "must be a text"),
        request(custom_id="x" * 300): ("custom_id", "at most 256 characters"),
        request(custom_id="\ud800"): ("custom_id", "lone surrogate"),
        request(method="GET"): ("method", "must be POST, got 'GET'"),
        request(url="/v1/embeddings"): ("url", "'/v1/embeddings' is not served"),
        request(url="/v1/completions"): ("url", "a batch has one endpoint, and this one's is /v1/chat/completions"),
        request(priority=1): (None, "unknown field 'priority'"),
        request(body=[]): (None, "the body must be a JSON object, got []"),
        request(body={**BODY, "stream": True}): ("stream", "are not streamed"),
        request(body={**BODY, "temperature": 3}): ("temperature", "less than or equal to 2, got 3"),
        request(custom_id="first"): ("custom_id", "'first' is that of line 1 already"),
    }
    for line, (param, words) in cases.items():
        fault = fault_of(line)
        assert fault.param == param
        assert words in fault.message


def test_a_model_that_nobody_serves_is_a_fault_once_it_is_known_who_serves_what() -> None:
    other = request("x", {**BODY, "model": "gpt-4o"})
    fault = fault_of(other, served=frozenset({"smollm2"}))
    assert (fault.code, fault.custom_id) == ("model_not_found", "x")
    assert "'gpt-4o' is not served here; the workers serve smollm2" in fault.message
    assert check(other)[1] == []
    assert check(other, served=frozenset({"smollm2"}), model="smollm2")[1] == []


def test_a_batchs_endpoint_may_be_given() -> None:
    checked, faults = check(request(), endpoint=Endpoint.COMPLETIONS)
    assert checked.endpoint is Endpoint.COMPLETIONS
    assert faults[0].param == "url"


def peak_bytes_of(num_lines: int) -> int:
    """Return the most memory that checking a file takes; every third line is at fault.

    Ids are too long for the texts that pydantic keeps, of which it has a fixed number.
    """
    lines = (request(f"{number:080}" if number % 3 else "0") for number in range(num_lines))
    file = io.BytesIO("\n".join(lines).encode())
    tracemalloc.start()
    checked = check_file(file, RequestReader(RequestRules()), lambda _: None, lambda _: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert checked.num_requests == num_lines
    return peak


def test_memory_does_not_grow_with_the_number_of_lines() -> None:
    peak_bytes_of(FAULTS_AT_ONCE)  # with what is made once
    assert peak_bytes_of(6 * FAULTS_AT_ONCE) < 1.1 * peak_bytes_of(4 * FAULTS_AT_ONCE)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 200))))
def test_a_set_of_lines_is_a_set(changes: list[tuple[bool, int]]) -> None:
    lines = LineSet()
    expected: set[int] = set()
    for add, line in changes:
        (lines.add if add else lines.discard)(line)
        (expected.add if add else expected.discard)(line)
    assert (list(lines), len(lines)) == (sorted(expected), len(expected))
    assert all((line in lines) == (line in expected) for line in range(1, 220))
