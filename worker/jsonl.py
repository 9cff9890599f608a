"""Files of one JSON value a line, of any length: they are read line by line, and a fault stays in its line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from worker.jobs import MAX_PAYLOAD_BYTES

MAX_LINE_BYTES = 6 * MAX_PAYLOAD_BYTES + 65_536  # JSON may escape a character of one byte with six
BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True)
class JsonLine:
    """A line that is not blank, and its value; or what is wrong with it. Lines count from 1."""

    number: int
    value: Any = None
    fault: str | None = None


def read_json_lines(file: IO[bytes], start: int = 0) -> Iterator[JsonLine]:
    """Yield the lines from byte `start` on. A line that is too long is skipped up to its end, never held in memory."""
    file.seek(start)
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            _skip_line(file, line)
            yield JsonLine(number, fault=f"has more than {MAX_LINE_BYTES} bytes")
        elif not line.isspace():
            yield from _read_line(number, line)


def utf8_text(data: bytes) -> str:
    """Return text that is UTF-8, or raise ValueError saying where it is not."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None


def _read_line(number: int, line: bytes) -> Iterator[JsonLine]:
    try:
        text = utf8_text(line)
    except ValueError as error:
        yield JsonLine(number, fault=str(error))
        return
    if number == 1:
        text = text.removeprefix(BYTE_ORDER_MARK)
    if not text.strip():
        return
    try:
        yield JsonLine(number, json.loads(text))
    except json.JSONDecodeError as error:
        yield JsonLine(number, fault=f"is not JSON: {error.msg} at character {error.pos + 1}")
    except (ValueError, RecursionError) as error:
        yield JsonLine(number, fault=f"is not JSON: {error}")


def _skip_line(file: IO[bytes], begun: bytes) -> None:
    while begun and not begun.endswith(b"\n"):
        begun = file.readline(MAX_LINE_BYTES)
