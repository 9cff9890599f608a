"""The producer's side: submit prompt jobs and wait for their ends. Imports neither the engine nor SQLAlchemy.

    with Client("redis://localhost:6379/0", database_url="postgresql://localhost/pagemill") as client:
        job_id = client.submit("Why is the sky blue?", max_tokens=64)
        print(client.wait([job_id])[job_id].value)

With a database, jobs are recorded there before Redis has them, and survive its loss. Who wants to repeat what met an
error has the ids settled first: `jobs = prepare([...])`, then `client.enqueue(jobs)` as often as it takes.
"""

import base64
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.errors import ConfigurationError, TryLater
from worker.queue.connection import connect, redis_errors
from worker.queue.submission import CHUNK_JOBS, DEFAULT_QUEUE, NewJob, PromptLike, enqueue, payload_of, prepare, submit
from worker.records import JobState
from worker.sql.recording import opened_recorder

__all__ = ["CHUNK_JOBS", "Client", "JobEnd", "NewJob", "PromptLike", "ends", "enqueue", "prepare", "submit"]

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended. `value` is its result where it is DONE, `error` the reason where it FAILED."""

    job_id: str
    state: JobState
    value: dict[str, Any] | None = None
    error: str | None = None


def ends(connection: redis.Redis, job_ids: Iterable[str], *, timeout_seconds: float | None = None) -> Iterator[JobEnd]:
    """Yield the end of each job as it comes. Raises TryLater when some have not ended within `timeout_seconds`."""
    pending = list(dict.fromkeys(job_ids))
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause = FIRST_PAUSE_SECONDS
    while pending:
        # Jobs end more or less in their order: asking for the oldest is enough, and bounds the cost of a poll.
        found = {end.job_id: end for end in _read_ends(connection, pending[:CHUNK_JOBS])}
        yield from found.values()
        pending = [job_id for job_id in pending if job_id not in found]
        pause = FIRST_PAUSE_SECONDS if found else min(pause * 1.5, LONGEST_PAUSE_SECONDS)
        if pending and not found:
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            if left <= 0:
                raise TryLater(f"{len(pending)} jobs have not ended within {timeout_seconds:g} s, first {pending[0]}")
            time.sleep(left)


class Client:
    """One connection for a producer. Also a context manager."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        data_dir: Path | None = None,
        database_url: str | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> None:
        """Connect to `redis_url`, or to the embedded queue of `data_dir`; with `database_url`, jobs are recorded there.

        Raises as `worker.queue.connection.connect` and `worker.sql.recording.opened_recorder`.
        """
        if redis_url is None and data_dir is None:
            raise ConfigurationError("Client: needs redis_url, or data_dir for the embedded queue")
        self.queue = queue
        with ExitStack() as opened:
            self.connection = connect(redis_url, data_dir or Path())
            opened.callback(self.connection.close)
            self._recorder = None if database_url is None else opened.enter_context(opened_recorder(database_url))
            self._opened = opened.pop_all()

    def submit(self, job: PromptLike, **fields: Any) -> str:
        """Enqueue one job, a prompt with `fields` of PromptJob beside it, and return its id."""
        return self.submit_many([job], **fields)[0]

    def submit_many(self, jobs: Iterable[PromptLike], **fields: Any) -> tuple[str, ...]:
        """Enqueue jobs, `fields` of PromptJob applied to each, and return their ids in order."""
        return self.enqueue(prepare({**payload_of(job), **fields} for job in jobs))

    def enqueue(self, jobs: Sequence[NewJob]) -> tuple[str, ...]:
        """Enqueue jobs that `prepare` has given their ids, and return these. After an error it may be called again with
        the same jobs, however far it came: none will be there twice."""
        chunks = enqueue(self.connection, jobs, queue=self.queue, recorder=self._recorder)
        return tuple(job_id for chunk in chunks for job_id in chunk)

    def result(self, job_id: str) -> dict[str, Any] | None:
        """Return the result of a job that is done; None while it is not, or when it ended otherwise (see `wait`)."""
        for end in _read_ends(self.connection, [job_id]):
            return end.value
        return None

    def wait(self, job_ids: Iterable[str], *, timeout_seconds: float | None = None) -> dict[str, JobEnd]:
        """Return the ends of jobs by id, waiting for all. Raises TryLater after `timeout_seconds`."""
        return {end.job_id: end for end in ends(self.connection, job_ids, timeout_seconds=timeout_seconds)}

    def close(self) -> None:
        """Close the connections; the embedded queue ends when its last user is gone."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_ends(connection: redis.Redis, job_ids: Sequence[str]) -> list[JobEnd]:
    with redis_errors(), connection.pipeline(transaction=False) as pipeline:
        for job_id in job_ids:
            pipeline.hget(f"{RQ_KEY_PREFIX}:job:{job_id}", "status")
            pipeline.xrevrange(f"{RQ_KEY_PREFIX}:results:{job_id}", count=1)
        replies = pipeline.execute()
    read = (_read_end(*one) for one in zip(job_ids, replies[::2], replies[1::2], strict=True))
    return [end for end in read if end is not None]


def _read_end(
    job_id: str, status: bytes | None, results: Sequence[tuple[bytes, Mapping[bytes, bytes]]]
) -> JobEnd | None:
    result = results[0][1] if results else {}
    if status is None:
        return JobEnd(job_id, JobState.FAILED, error="the queue does not know it: it expired or was deleted")
    if status == b"finished":
        value = result.get(b"return_value")
        return JobEnd(job_id, JobState.DONE, value=json.loads(base64.b64decode(value)) if value else None)
    if status in (b"failed", b"stopped"):
        text = result.get(b"exc_string")
        error = zlib.decompress(base64.b64decode(text)).decode() if text else "no reason was recorded"
        return JobEnd(job_id, JobState.FAILED, error=error)
    return JobEnd(job_id, JobState.CANCELLED) if status == b"canceled" else None
