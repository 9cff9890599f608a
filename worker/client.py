"""The producer's side: submit prompt jobs and wait for their ends. Imports neither the engine nor SQLAlchemy.

    with Client("redis://localhost:6379/0", database_url="postgresql://localhost/pagemill") as client:
        job_id = client.submit("Why is the sky blue?", max_tokens=64)
        print(client.wait([job_id])[job_id].value)

With a database, jobs are recorded there before Redis has them, and survive its loss. Who wants to repeat what met an
error has the ids settled first: `jobs = prepare([...])`, then `client.enqueue(jobs)` as often as it takes.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import redis

from worker.errors import ConfigurationError, TryLater
from worker.queue.access import QueueAccess
from worker.queue.connection import connect, redis_errors
from worker.queue.ends import JobEnd, JobNotDone, ask_for_ends, read_ends
from worker.queue.live_output import (
    EVENTS_AT_ONCE,
    RENEW_SECONDS,
    WATCH_SECONDS,
    LiveCursor,
    OutputPiece,
    OutputTexts,
    advance,
    by_key,
)
from worker.queue.submission import CHUNK_JOBS, DEFAULT_QUEUE, NewJob, PromptLike, enqueue, payload_of, prepare, submit
from worker.sql.recording import opened_recorder

__all__ = [
    "CHUNK_JOBS",
    "Client",
    "JobEnd",
    "JobNotDone",
    "NewJob",
    "OutputPiece",
    "PromptLike",
    "ends",
    "enqueue",
    "follow",
    "follow_outputs",
    "prepare",
    "submit",
]

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
FOLLOW_BLOCK_MS = 1_000  # how long one read waits, and so how soon an end is seen that writes nothing: a cancellation


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
                raise not_ended(pending, timeout_seconds)
            time.sleep(left)


def follow(
    connection: redis.Redis, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
) -> Iterator[str]:
    """Yield a job's output as it is generated, of several the first. See `follow_outputs`."""
    pieces = follow_outputs(
        connection, job_id, timeout_seconds=timeout_seconds, appears_within_seconds=appears_within_seconds
    )
    return (piece.text for piece in pieces if piece.index == 0 and piece.text)


def follow_outputs(
    connection: redis.Redis, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
) -> Iterator[OutputPiece]:
    """Yield what a job's outputs grow by; all of each, each character once, has come when the iteration ends.

    The piece with which an output ends has its `finish_reason`, and comes when that output ends, not when all have.

    A job of the outbox may be unknown to Redis at first: for `appears_within_seconds` it is waited for.
    Raises JobNotDone where the job ends otherwise than done, after what had come of it, and TryLater when it has not
    ended within `timeout_seconds` or began again and now answers otherwise. Errors of Redis are those of
    `redis_errors`.
    """
    access, cursor, outputs = QueueAccess(connection), LiveCursor(job_id, with_tokens=True), OutputTexts(job_id)
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    appears_by = time.monotonic() + appears_within_seconds
    renew_at = 0.0
    end: JobEnd | None = None
    while end is None:
        if time.monotonic() >= renew_at:
            access.watch(job_id, WATCH_SECONDS)
            renew_at = time.monotonic() + RENEW_SECONDS
        end = next(iter(_read_ends(connection, [job_id])), None)
        if end is not None and end.is_unknown and time.monotonic() < appears_by:
            end = None
        left_ms = FOLLOW_BLOCK_MS if deadline is None else (deadline - time.monotonic()) * 1000
        if end is None and left_ms <= 0:
            raise not_ended([job_id], timeout_seconds)
        block_ms = None if end is not None else max(1, min(FOLLOW_BLOCK_MS, round(left_ms)))
        with redis_errors():
            reply = connection.xread(dict(cursor.streams()), count=EVENTS_AT_ONCE, block=block_ms)
        for delta in advance(cursor, by_key(reply)).deltas:
            yield from outputs.take(delta)
    yield from outputs.finish(end)


def not_ended(job_ids: Sequence[str], timeout_seconds: float | None) -> TryLater:
    """Return the error of jobs that take longer than somebody would wait."""
    return TryLater(f"{len(job_ids)} jobs have not ended within {timeout_seconds:g} s, first {job_ids[0]}")


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

    def stream(
        self, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
    ) -> Iterator[str]:
        """Yield a job's output as it is generated, of several the first. See `follow_outputs`."""
        return follow(
            self.connection,
            job_id,
            timeout_seconds=timeout_seconds,
            appears_within_seconds=appears_within_seconds,
        )

    def stream_outputs(
        self, job_id: str, *, timeout_seconds: float | None = None, appears_within_seconds: float = 0.0
    ) -> Iterator[OutputPiece]:
        """Yield what each of a job's outputs grows by, as they are generated. See `follow_outputs`."""
        return follow_outputs(
            self.connection,
            job_id,
            timeout_seconds=timeout_seconds,
            appears_within_seconds=appears_within_seconds,
        )

    def close(self) -> None:
        """Close the connections; the embedded queue ends when its last user is gone."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_ends(connection: redis.Redis, job_ids: Sequence[str]) -> list[JobEnd]:
    with redis_errors(), connection.pipeline(transaction=False) as pipeline:
        ask_for_ends(pipeline, job_ids)
        return read_ends(job_ids, pipeline.execute())
