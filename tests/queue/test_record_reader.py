"""Whatever a record holds, reading it gives a prompt job or says in one line why it is none."""

import json
import zlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from worker.jobs import PromptJob, parse_job
from worker.queue.queue_records import PromptRecord, RecordError, raw_json, read_record

MAX_MESSAGE_CHARACTERS = 700

NAMES = (b"status", b"data", b"created_at", b"enqueued_at", b"started_at", b"timeout", b"result_ttl", b"ttl", b"origin")
GOOD: dict[bytes, bytes] = {
    b"status": b"queued",
    b"enqueued_at": b"2026-01-31T23:59:59.000001Z",
    b"data": zlib.compress(b'["pagemill.prompt", null, [{"prompt": "x"}], {}]'),
}
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)  # lone surrogates and all
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*PromptJob.model_fields, "n", "__class__"])
PAYLOADS = st.dictionaries(FIELDS, JSON, max_size=4)
CALLS: Any = st.lists(JSON, max_size=5) | st.builds(lambda payload: ["pagemill.prompt", None, [payload], {}], PAYLOADS)


def read(fields: dict[bytes, bytes]) -> PromptRecord | RecordError:
    try:
        return read_record(fields)
    except RecordError as error:
        return error


def check(fields: dict[bytes, bytes]) -> None:
    """Read a record; what comes of it must be whole."""
    raw = raw_json(fields)
    assert raw.isascii()
    assert isinstance(json.loads(raw), dict)
    record = read(fields)
    if isinstance(record, RecordError):
        assert str(record).isprintable()
        assert len(str(record)) <= MAX_MESSAGE_CHARACTERS
        return
    assert parse_job(json.loads(record.payload_json)) == record.job
    assert record.payload_json.isascii()
    assert record.enqueued_at.tzinfo is not None


@given(st.dictionaries(st.sampled_from(NAMES) | st.binary(max_size=8), st.binary(max_size=40), max_size=8))
def test_any_fields(fields: dict[bytes, bytes]) -> None:
    check(fields)
    check({**GOOD, **fields})


@given(CALLS)
def test_any_call(call: list[Any]) -> None:
    check({**GOOD, b"data": zlib.compress(json.dumps(call).encode())})


@given(st.binary(max_size=200), st.booleans())
def test_any_data(data: bytes, is_compressed: bool) -> None:
    check({**GOOD, b"data": zlib.compress(data) if is_compressed else data})


@given(st.data())
def test_any_flipped_byte(data: st.DataObject) -> None:
    whole = bytearray(GOOD[b"data"])
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    check({**GOOD, b"data": bytes(whole)})
