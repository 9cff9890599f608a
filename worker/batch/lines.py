"""From a file's lines to requests: each is one, or is at fault and says why."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from worker.batch.line_set import LineSet
from worker.batch.records import LineFault
from worker.batch.seen_ids import SeenIds
from worker.jobs import shorten
from worker.jsonl import JsonLine, read_json_lines
from worker.model_shape import short_name
from worker.openai_api.errors import RequestRefused, model_refusal, refusal
from worker.openai_api.fields import Endpoint
from worker.openai_api.requests import parse_endpoint, parse_request

FIELDS = frozenset({"custom_id", "method", "url", "body"})
FAULTS_AT_ONCE = 500
DUPLICATE = "duplicate_custom_id"


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What a file's requests are read by.

    `max_tokens` holds for requests that do not say; `model` answers all of them, whatever model they name. `served` are
    the names of the models that workers serve, None where nobody knows. `extra` are fields of every job.
    """

    endpoint: Endpoint | None = None  # None is the first good line's
    max_tokens: int | None = None
    model: str | None = None
    served: frozenset[str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestLine:
    """A line that can be served: the JSON object of its job."""

    line: int  # from 1
    custom_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What came of reading a whole file: the lines that can be served, and how many there are with the others."""

    endpoint: Endpoint | None
    good: LineSet
    num_requests: int  # those at fault included
    num_faults: int


class RequestReader:
    """Reads a file's lines by the rules. A batch has one endpoint: that of its first good line, or the rules'."""

    def __init__(self, rules: RequestRules) -> None:
        self._rules = rules
        self._defaults = {} if rules.max_tokens is None else {"max_tokens": rules.max_tokens}
        self.endpoint = rules.endpoint

    def read(self, file: IO[bytes]) -> Iterator[RequestLine | LineFault]:
        """Yield what each line is that is not blank."""
        for line in read_json_lines(file):
            yield self._parsed(line)

    def _parsed(self, line: JsonLine) -> RequestLine | LineFault:
        custom_id = line.value.get("custom_id") if isinstance(line.value, Mapping) else None
        try:
            return self._request(line)
        except RequestRefused as refused:
            error = refused.error
            named = custom_id if isinstance(custom_id, str) else None
            return LineFault(line.number, named, error.message, error.code, error.param)

    def _request(self, line: JsonLine) -> RequestLine:
        if line.fault is not None:
            raise refusal(None, f"the line {line.fault}", "invalid_json_line")
        value = line.value
        if not isinstance(value, Mapping):
            raise refusal(None, f"the line is no JSON object but {shorten(value)}", "invalid_json_line")
        unknown = value.keys() - FIELDS
        if unknown:
            raise refusal(None, f"unknown field {shorten(min(unknown))}; a line has {', '.join(sorted(FIELDS))}")
        custom_id = value.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            raise refusal("custom_id", f"must be a text that is not empty, got {shorten(custom_id)}")
        if value.get("method") != "POST":
            raise refusal("method", f"must be POST, got {shorten(value.get('method'))}")
        endpoint = parse_endpoint(value.get("url"))
        if self.endpoint is not None and endpoint is not self.endpoint:
            raise refusal("url", f"a batch has one endpoint, and this one's is {self.endpoint.value}", "invalid_url")
        payload = self._payload(endpoint, custom_id, value.get("body"))
        self.endpoint = endpoint
        return RequestLine(line.number, custom_id, payload)

    def _payload(self, endpoint: Endpoint, custom_id: str, body: Any) -> Mapping[str, Any]:
        if self._rules.model is not None and isinstance(body, Mapping):
            body = {**body, "model": self._rules.model}
        extra = {**self._rules.extra, "custom_id": custom_id}
        parsed = parse_request(endpoint, body, defaults=self._defaults, extra=extra)
        if parsed.stream:
            raise refusal("stream", "the requests of a batch are not streamed")
        model, served = parsed.payload.get("model"), self._rules.served
        if model is not None and served is not None and not {model, short_name(model)} & served:
            raise model_refusal(model, f"the workers serve {' or '.join(sorted(served))}")
        return parsed.payload


def check_file(
    file: IO[bytes],
    reader: RequestReader,
    tell_faults: Callable[[list[LineFault]], None],
    tick: Callable[[int], None],
    visit: Callable[[RequestLine], LineFault | None] = lambda _: None,
) -> CheckedFile:
    """Read all lines; memory is a bit for each, and a few bytes on disk.

    `tell_faults` gets the lines at fault, many at a time, `tick` the number of lines read so far. `visit` sees each
    good line, and may find a fault in it too.
    """
    good = LineSet()
    faults: list[LineFault] = []
    num_requests = num_faults = 0
    with SeenIds() as seen:
        for num_requests, line in enumerate(reader.read(file), start=1):
            fault = line if isinstance(line, LineFault) else _duplicate(line, seen) or visit(line)
            if fault is None:
                good.add(line.line)
            else:
                num_faults += 1
                faults.append(fault)
            if len(faults) >= FAULTS_AT_ONCE:
                tell_faults(faults)
                faults = []
            tick(num_requests)
    if faults:
        tell_faults(faults)
    return CheckedFile(reader.endpoint, good, num_requests, num_faults)


def digest_of(file: IO[bytes]) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # it only wants readinto


def _duplicate(line: RequestLine, seen: SeenIds) -> LineFault | None:
    first = seen.add(line.custom_id, line.line)
    if first is None:
        return None
    message = f"custom_id: {shorten(line.custom_id)} is that of line {first} already"
    return LineFault(line.line, line.custom_id, message, DUPLICATE, "custom_id")
