"""From RQ's job record to a prompt job: nothing in a record is trusted, unpickled or imported."""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rq.job import JobStatus

from worker.backoff import RetryPolicy
from worker.errors import InvalidJob, PagemillError
from worker.functions.allow_list import NO_FUNCTIONS, AllowList
from worker.jobs import FUNCTION_NAME, MAX_PAYLOAD_BYTES, PromptJob, parse_job

MAX_DATA_BYTES = 6 * MAX_PAYLOAD_BYTES + 1024  # RQ's JSON escapes a character of one or two bytes with six
MAX_RAW_FIELD_BYTES = 1_048_576  # of each field that a dead record keeps
MAX_META_BYTES = 65_536
MAX_SECONDS = 2**31 - 1
STATUSES = frozenset(status.value for status in JobStatus)
SECONDS_FIELDS = ("timeout", "result_ttl", "failure_ttl", "ttl")
DATE_FIELDS = ("created_at", "enqueued_at", "started_at", "ended_at", "last_heartbeat")
_DATE = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_COUNT = re.compile(rb"\d{1,9}", re.ASCII)

Fields = Mapping[bytes, bytes]


class RecordError(PagemillError):
    """A record that is not a prompt job; `code` says in a word why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """A record of a plain function that the worker may run. RQ reads the rest of it."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """What a well-formed record holds."""

    job: PromptJob
    payload_json: str
    enqueued_at: datetime  # UTC
    retries: RetryPolicy
    timeout_seconds: float | None  # RQ's; None is without
    traceparent: str | None  # of RQ's meta, as it came


@dataclass(frozen=True, slots=True)
class _Call:
    """What RQ serializes of a call, before anything of it was checked."""

    function: object
    instance: object
    args: object
    kwargs: object


def read_record(fields: Fields) -> PromptRecord:
    """Read RQ's fields of a job. Raises RecordError for anything but a valid prompt job; mutates nothing."""
    record = read_runnable(fields, NO_FUNCTIONS)
    assert isinstance(record, PromptRecord), "no function is allowed"
    return record


def read_runnable(fields: Fields, functions: AllowList) -> PromptRecord | FunctionRecord:
    """Read RQ's fields of a job. Raises RecordError for anything but a valid prompt job and a call of one of the
    `functions`; imports none of them, and mutates nothing."""
    status = fields.get(b"status", b"created")
    if status.decode("latin-1") not in STATUSES:
        raise RecordError("corrupt_record", f"status: {_shorten(status)} is not one of RQ's")
    for name in SECONDS_FIELDS:
        _check_seconds(name, fields.get(name.encode(), b""))
    dates = {name: _read_date(name, fields.get(name.encode(), b"")) for name in DATE_FIELDS}
    enqueued_at = dates["enqueued_at"] or dates["created_at"]
    if enqueued_at is None:
        raise RecordError("corrupt_record", "enqueued_at: is missing")
    call = _read_call(fields.get(b"data", b""))
    if call.function != FUNCTION_NAME and functions.allows(call.function):
        _check_arguments(call)
        return FunctionRecord()
    payload = _payload_of(call)
    try:
        job = parse_job(payload)
    except InvalidJob as error:
        raise RecordError(error.code, str(error)) from None
    timeout_seconds = float(fields.get(b"timeout") or -1)
    return PromptRecord(
        job=job,
        payload_json=json.dumps(payload),
        enqueued_at=enqueued_at,
        retries=_read_retries(job, fields),
        timeout_seconds=timeout_seconds if timeout_seconds > 0 else None,
        traceparent=_read_traceparent(fields.get(b"meta", b"")),
    )


def _read_traceparent(meta: bytes) -> str | None:
    """Return what RQ's meta says, if it is JSON and short enough to look into: it is only a note."""
    if b"traceparent" not in meta or len(meta) > MAX_META_BYTES:
        return None
    try:
        found = json.loads(meta)
    except (ValueError, RecursionError):
        return None
    text = found.get("traceparent") if isinstance(found, dict) else None
    return text if isinstance(text, str) else None


def read_date(text: bytes) -> datetime | None:
    """Return RQ's date as UTC; None where it is empty or malformed."""
    if not _DATE.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return None


def raw_json(fields: Fields) -> str:
    """Return a record's fields as ASCII JSON for keeping: text as text, other bytes as hex, very long ones cut."""
    return json.dumps({_show(name): _show(value) for name, value in fields.items()})


def _read_retries(job: PromptJob, fields: Fields) -> RetryPolicy:
    """Return what the job asks for itself, else what RQ's Retry asks for, else the default."""
    rqs = _read_rqs_retries(fields)
    if job.max_retries is not None:
        return RetryPolicy(job.max_retries)
    return RetryPolicy() if rqs is None else rqs


def _read_rqs_retries(fields: Fields) -> RetryPolicy | None:
    """Return the policy of RQ's Retry, whose count goes down as ours goes up; None where there is none."""
    left, spent = (_read_count(name, fields.get(name.encode())) for name in ("retries_left", "pagemill_retries"))
    text = fields.get(b"retry_intervals", b"[]")
    try:
        intervals = json.loads(text)
    except (ValueError, RecursionError):
        intervals = None
    if not isinstance(intervals, list) or not all(_is_interval(interval) for interval in intervals):
        raise RecordError("corrupt_record", f"retry_intervals: {_shorten(text)} is not a list of seconds")
    return None if left is None else RetryPolicy(left + (spent or 0), tuple(intervals))


def _is_interval(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_SECONDS


def _read_count(name: str, value: bytes | None) -> int | None:
    if value is None:
        return None
    if not _COUNT.fullmatch(value):
        raise RecordError("corrupt_record", f"{name}: {_shorten(value)} is not a count")
    return int(value)


def read_payload(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a record's `data` enqueues, unchecked. Raises RecordError for anything else."""
    return _payload_of(_read_call(data))


def _read_call(data: bytes) -> _Call:
    text = _decompress(data)
    if text[:1] == b"\x80":
        raise RecordError("pickled_record", "data: is pickled and was not loaded; enqueue with serializer='json'")
    try:
        call = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError("corrupt_record", f"data: is not JSON ({type(error).__name__})") from None
    if not isinstance(call, list) or len(call) != 4:
        raise RecordError("corrupt_record", "data: is not RQ's list of function, instance, args and kwargs")
    return _Call(*call)


def _check_arguments(call: _Call) -> None:
    if call.instance is not None:
        raise RecordError("wrong_arguments", "arguments: methods of objects do not run here")
    if not isinstance(call.args, list) or not isinstance(call.kwargs, dict):
        raise RecordError("wrong_arguments", "arguments: are not a list and an object")


def _payload_of(call: _Call) -> dict[str, Any]:
    if call.function != FUNCTION_NAME:
        raise RecordError(
            "wrong_function", f"function: {_shorten(call.function)} was refused; only {FUNCTION_NAME} runs here"
        )
    if call.instance is not None or call.kwargs not in ({}, None):
        raise RecordError("wrong_arguments", "arguments: only one positional JSON object is accepted, no keywords")
    if not isinstance(call.args, list) or len(call.args) != 1 or not isinstance(call.args[0], dict):
        raise RecordError("wrong_arguments", "arguments: exactly one JSON object is accepted")
    return call.args[0]


def _decompress(data: bytes) -> bytes:
    """Inflate a record's data, but never beyond the size that a valid job can have."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, MAX_DATA_BYTES)
    except zlib.error:
        raise RecordError("corrupt_record", "data: is not zlib-compressed") from None
    if inflater.unconsumed_tail:
        raise RecordError("invalid_job", f"payload: has more than {MAX_PAYLOAD_BYTES} bytes")
    if not inflater.eof or inflater.unused_data:
        raise RecordError("corrupt_record", "data: is cut short or has bytes behind its end")
    return text


def _check_seconds(name: str, value: bytes) -> None:
    if not value:
        return
    try:
        seconds = float(value)
    except ValueError:
        seconds = -2.0
    if not -1 <= seconds <= MAX_SECONDS:
        raise RecordError(
            "corrupt_record", f"{name}: {_shorten(value)} is not a number of seconds from -1 to {MAX_SECONDS}"
        )


def _read_date(name: str, value: bytes) -> datetime | None:
    date = read_date(value)
    if value and date is None:
        raise RecordError("corrupt_record", f"{name}: {_shorten(value)} is not a date of RQ's")
    return date


def _show(value: bytes) -> str:
    cut = value[:MAX_RAW_FIELD_BYTES]
    try:
        text = cut.decode("utf-8")
    except UnicodeDecodeError:
        text = "hex:" + cut.hex()
    return text if len(cut) == len(value) else f"{text}... (of {len(value)} bytes)"


def _shorten(value: object) -> str:
    text = ascii(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
