"""What `submit` takes from its arguments: prompts and metadata."""

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from worker.errors import InvalidJob
from worker.job_files import STDIN, decode, name_of
from worker.jobs import MAX_PAYLOAD_BYTES


def read_prompt(path: str) -> str:
    """Return a file's or standard input's text as one prompt, without the newline that ends its last line."""
    name = name_of(path)
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else Path(path).open("rb") as file:
            data = file.read(MAX_PAYLOAD_BYTES + 1)
    except OSError as error:
        raise InvalidJob(name, f"cannot be read: {error.strerror}") from None
    if len(data) > MAX_PAYLOAD_BYTES:
        raise InvalidJob(name, f"has more than {MAX_PAYLOAD_BYTES} bytes, which is the most that a job may have")
    return decode(data, name).removeprefix("\ufeff").removesuffix("\n")


def parse_metadata(pairs: Iterable[str]) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping. Raises InvalidJob for one without `=`."""
    metadata: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise InvalidJob("metadata", f"{pair!r} is not NAME=VALUE")
        metadata[name] = value
    return metadata
