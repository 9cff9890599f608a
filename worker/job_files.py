"""From a file of jobs to jobs: all of them valid, or one error that says where the first fault is.

What may be long is read twice, line by line: once to check every job, once to submit them.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from worker.errors import InvalidJob, PagemillError
from worker.jsonl import read_json_lines, utf8_text
from worker.queue.submission import NewJob, prepare_one, valid_payload

STDIN = "-"
MOST_JOBS = 999_999_999  # of a batch, for checking jobs whose number is not known yet

JobFields = tuple[str | None, Mapping[str, Any]]  # where it stands, the fields of the job
ReadJobs = Callable[[], Iterator[JobFields]]  # reads from the start each time


@contextmanager
def opened_jsonl(path: str) -> Iterator[ReadJobs]:
    """Give the jobs of a JSONL file or of standard input, to be read as often as needed; see `_read_lines`.

    What cannot be read twice, a pipe above all, is copied to a temporary file.
    """
    with ExitStack() as opened:
        try:
            file: IO[bytes] = sys.stdin.buffer if path == STDIN else opened.enter_context(Path(path).open("rb"))
            if not file.seekable():
                copy = opened.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                file = copy
        except OSError as error:
            raise InvalidJob(name_of(path), f"cannot be read: {error.strerror}") from None
        start = file.tell()
        yield lambda: _read_lines(file, start)


def check_jobs(read: ReadJobs, defaults: Mapping[str, Any], tick: Callable[[int], None]) -> int:
    """Check every job and return how many there are; a source's own fields win over `defaults`.

    Raises PagemillError with the first fault, its place and the number of other faults. `tick` hears the number of
    jobs checked so far.
    """
    first_fault = ""
    num_jobs = num_faults = 0
    room = {"batch_size": MOST_JOBS} if "batch_id" in defaults else {}
    for num_jobs, (place, fields) in enumerate(read(), start=1):
        try:
            valid_payload({**defaults, **room, **fields})
        except InvalidJob as error:
            num_faults += 1
            first_fault = first_fault or _placed(place, error)
        tick(num_jobs)
    if first_fault:
        raise PagemillError(first_fault + (f" (and {num_faults - 1} more faults)" if num_faults > 1 else ""))
    return num_jobs


def new_jobs(read: ReadJobs, defaults: Mapping[str, Any], num_jobs: int) -> Iterator[NewJob]:
    """Yield the jobs that were checked, with their ids; of a batch, with its size.

    Raises PagemillError when the source is not any more what was checked.
    """
    size = {"batch_size": num_jobs} if "batch_id" in defaults else {}
    num_left = num_jobs
    for place, fields in islice(read(), num_jobs):
        try:
            job = prepare_one({**defaults, **size, **fields})
        except InvalidJob as error:
            raise PagemillError(f"{_placed(place, error)}; it was changed while it was being submitted") from None
        yield job
        num_left -= 1
    if num_left:
        raise PagemillError(f"{num_left} of {num_jobs} jobs are gone: they were changed while they were submitted")


def _read_lines(file: IO[bytes], start: int) -> Iterator[JobFields]:
    """Yield (place, job fields) for each line that is not blank: a JSON string is a prompt, an object a job.

    `start` is where the first line begins. Raises InvalidJob naming the line that is neither.
    """
    for line in read_json_lines(file, start):
        place = f"line {line.number}"
        if line.fault is not None:
            raise InvalidJob(place, line.fault)
        yield place, _job_fields(place, line.value)


def _job_fields(place: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"prompt": value}
    if isinstance(value, dict):
        return value
    raise InvalidJob(place, f"is a JSON {_kind(value)}; a string (the prompt) or an object (a job) is needed")


def name_of(path: str) -> str:
    """Return what an error calls a file, or standard input."""
    return "standard input" if path == STDIN else path


def decode(data: bytes, name: str) -> str:
    """Return UTF-8 text. Raises InvalidJob, which calls it `name`."""
    try:
        return utf8_text(data)
    except ValueError as error:
        raise InvalidJob(name, str(error)) from None


def _placed(place: str | None, error: InvalidJob) -> str:
    return f"{place}: {error}" if place else str(error)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "array" if isinstance(value, list) else "number"
