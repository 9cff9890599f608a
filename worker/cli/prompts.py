"""From what a user gave `submit` to validated jobs: all of them, or one error that says where the first fault is."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worker.errors import InvalidJob, PagemillError
from worker.jobs import PromptJob, parse_job

STDIN = "-"


def read_prompt(path: str) -> str:
    """Return a file's or standard input's text as one prompt, without the newline that ends its last line."""
    return _read_text(path).removesuffix("\n")


def read_jsonl(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, job fields) for each line that is not blank: a JSON string is a prompt, an object a job.

    Raises InvalidJob naming the line that is neither.
    """
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidJob(place, f"is not JSON: {error}") from None
        if isinstance(value, str):
            yield place, {"prompt": value}
        elif isinstance(value, dict):
            yield place, value
        else:
            raise InvalidJob(place, f"is a JSON {_kind(value)}; a string (the prompt) or an object (a job) is needed")


def build_jobs(
    sources: Iterable[tuple[str | None, Mapping[str, Any]]], defaults: Mapping[str, Any]
) -> tuple[PromptJob, ...]:
    """Return the validated jobs; a source's own fields win over `defaults`.

    Raises PagemillError with the first fault, its place and the number of other faults.
    """
    jobs: list[PromptJob] = []
    faults: list[str] = []
    for place, fields in sources:
        try:
            jobs.append(parse_job({**defaults, **fields}))
        except InvalidJob as error:
            faults.append(f"{place}: {error}" if place else str(error))
    if faults:
        raise PagemillError(faults[0] + (f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""))
    return tuple(jobs)


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping. Raises InvalidJob for one without `=`."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise InvalidJob("metadata", f"{pair!r} is not NAME=VALUE")
        metadata[name] = value
    return metadata


def _read_text(path: str) -> str:
    name = "standard input" if path == STDIN else path
    try:
        data = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidJob(name, f"is not UTF-8: byte {data[error.start]:#04x} at position {error.start}") from None
    except OSError as error:
        raise InvalidJob(name, f"cannot be read: {error.strerror}") from None


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "array" if isinstance(value, list) else "number"
