"""How jobs ended, as Redis tells: asked for in one pipeline, whether that is redis-py's plain or its asyncio one."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rq.defaults import RQ_KEY_PREFIX

from worker.errors import ExitCode, PagemillError
from worker.records import JobState

UNKNOWN = "the queue does not know it: it expired or was deleted"


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended. `value` is its result where it is DONE, `error` the reason where it FAILED."""

    job_id: str
    state: JobState
    value: dict[str, Any] | None = None
    error: str | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether Redis has no such job: not any more, or, where it comes from the outbox, not yet."""
        return self.error == UNKNOWN


class JobNotDone(PagemillError):
    """A job whose output was asked for ended otherwise than done; `end` says how."""

    exit_code = ExitCode.JOBS_FAILED

    def __init__(self, end: JobEnd) -> None:
        super().__init__(f"job {end.job_id} is {end.state.value}" + (f": {end.error}" if end.error else ""))
        self.end = end


def ask_for_ends(pipeline: Any, job_ids: Sequence[str]) -> None:
    """Put the questions into a pipeline; `read_ends` takes its replies."""
    for job_id in job_ids:
        pipeline.hget(f"{RQ_KEY_PREFIX}:job:{job_id}", "status")
        pipeline.xrevrange(results_key(job_id), count=1)


def read_ends(job_ids: Sequence[str], replies: Sequence[Any]) -> list[JobEnd]:
    """Return the ends of those of the jobs that have ended."""
    read = (_read_end(*one) for one in zip(job_ids, replies[::2], replies[1::2], strict=True))
    return [end for end in read if end is not None]


def results_key(job_id: str) -> str:
    """Return the key of the stream to which RQ, and we, add a job's results."""
    return f"{RQ_KEY_PREFIX}:results:{job_id}"


def _read_end(
    job_id: str, status: bytes | None, results: Sequence[tuple[bytes, Mapping[bytes, bytes]]]
) -> JobEnd | None:
    result = results[0][1] if results else {}
    if status is None:
        return JobEnd(job_id, JobState.FAILED, error=UNKNOWN)
    if status == b"finished":
        value = result.get(b"return_value")
        return JobEnd(job_id, JobState.DONE, value=json.loads(base64.b64decode(value)) if value else None)
    if status in (b"failed", b"stopped"):
        text = result.get(b"exc_string")
        error = zlib.decompress(base64.b64decode(text)).decode() if text else "no reason was recorded"
        return JobEnd(job_id, JobState.FAILED, error=error)
    return JobEnd(job_id, JobState.CANCELLED) if status == b"canceled" else None
