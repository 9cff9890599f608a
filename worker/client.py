"""The producer's side: submit prompt jobs and wait for their ends. Imports neither the engine nor SQL.

    with Client("redis://localhost:6379/0") as client:
        job_id = client.submit("Why is the sky blue?", max_tokens=64)
        print(client.wait([job_id])[job_id].value)

What it writes is what `rq.Queue(name, serializer="json").enqueue("pagemill.prompt", {...})` writes, only faster, and
the name of the tenant beside it.
"""

import base64
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import redis
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX
from rq.serializers import JSONSerializer
from rq.utils import get_call_string, now, utcformat

from worker.connection import connect, redis_errors
from worker.errors import ConfigurationError, ServiceUnavailable, TryLater
from worker.jobs import DEFAULT_TENANT, FUNCTION_NAME, PromptJob, dump_job, parse_job
from worker.records import JobState

DEFAULT_QUEUE = "default"
DEFAULT_RESULT_TTL_SECONDS = 86_400
NO_TIMEOUT = -1  # RQ's: a job ends by its own limits, never because it waited inside a batch
CHUNK_JOBS = 500  # per transaction: bounds the time that one takes
DESCRIPTION_CHARACTERS = 75  # of each argument, as RQ cuts them
TENANT_FIELD = "pagemill_tenant"  # of a record: limits by tenant need not look into its payload
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5

PromptLike = PromptJob | Mapping[str, Any] | str  # a job, its JSON object, or only its prompt


@dataclass(frozen=True, slots=True)
class NewJob:
    """A valid job that has its id but is not in the queue yet."""

    job_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended. `value` is its result where it is DONE, `error` the reason where it FAILED."""

    job_id: str
    state: JobState
    value: dict[str, Any] | None = None
    error: str | None = None


def prepare(jobs: Iterable[PromptLike]) -> tuple[NewJob, ...]:
    """Validate jobs and give them ids; touches no server. Raises InvalidJob for the first that breaks a rule."""
    return tuple(NewJob(uuid4().hex, dump_job(_typed(job))) for job in jobs)


def enqueue(
    connection: redis.Redis,
    jobs: Sequence[NewJob],
    *,
    queue: str = DEFAULT_QUEUE,
    result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS,
) -> Iterator[tuple[str, ...]]:
    """Enqueue prepared jobs in transactions of at most `CHUNK_JOBS`, yielding the ids of each when it is done.

    A transaction whose reply was lost is looked up and, only if it did not happen, repeated once. Raises TryLater when
    Redis is full and ServiceUnavailable when it cannot be reached, saying how many jobs are in the queue; each
    transaction is in it as a whole or not at all.
    """
    target = Queue(queue, connection=connection, serializer=JSONSerializer)
    template = target.create_job(FUNCTION_NAME, args=({},), timeout=NO_TIMEOUT, result_ttl=result_ttl_seconds).to_dict()
    for start in range(0, len(jobs), CHUNK_JOBS):
        chunk = jobs[start : start + CHUNK_JOBS]
        try:
            _enqueue_once(connection, target, template, chunk)
        except (ServiceUnavailable, TryLater) as error:
            raise type(error)(f"{error}; {start} of {len(jobs)} jobs are in the queue") from None
        yield tuple(job.job_id for job in chunk)


def submit(
    connection: redis.Redis,
    jobs: Iterable[PromptLike],
    *,
    queue: str = DEFAULT_QUEUE,
    result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS,
) -> tuple[str, ...]:
    """Validate all jobs, then enqueue them. Returns their ids in order; errors are those of `prepare` and `enqueue`."""
    chunks = enqueue(connection, prepare(jobs), queue=queue, result_ttl_seconds=result_ttl_seconds)
    return tuple(job_id for chunk in chunks for job_id in chunk)


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
        self, redis_url: str | None = None, *, data_dir: Path | None = None, queue: str = DEFAULT_QUEUE
    ) -> None:
        """Connect to `redis_url`, or to the embedded queue of `data_dir`. Raises as `worker.connection.connect`."""
        if redis_url is None and data_dir is None:
            raise ConfigurationError("Client: needs redis_url, or data_dir for the embedded queue")
        self.connection = connect(redis_url, data_dir or Path())
        self.queue = queue

    def submit(self, job: PromptLike, **fields: Any) -> str:
        """Enqueue one job, a prompt with `fields` of PromptJob beside it, and return its id."""
        return self.submit_many([job], **fields)[0]

    def submit_many(self, jobs: Iterable[PromptLike], **fields: Any) -> tuple[str, ...]:
        """Enqueue jobs, `fields` of PromptJob applied to each, and return their ids in order."""
        return submit(self.connection, ({**_payload(job), **fields} for job in jobs), queue=self.queue)

    def result(self, job_id: str) -> dict[str, Any] | None:
        """Return the result of a job that is done; None while it is not, or when it ended otherwise (see `wait`)."""
        for end in _read_ends(self.connection, [job_id]):
            return end.value
        return None

    def wait(self, job_ids: Iterable[str], *, timeout_seconds: float | None = None) -> dict[str, JobEnd]:
        """Return the ends of jobs by id, waiting for all. Raises TryLater after `timeout_seconds`."""
        return {end.job_id: end for end in ends(self.connection, job_ids, timeout_seconds=timeout_seconds)}

    def close(self) -> None:
        """Close the connection; the embedded queue ends when its last user is gone."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _payload(job: PromptLike) -> Mapping[str, Any]:
    if isinstance(job, str):
        return {"prompt": job}
    return dump_job(job) if isinstance(job, PromptJob) else job


def _typed(job: PromptLike) -> PromptJob:
    return job if isinstance(job, PromptJob) else parse_job(_payload(job))


def _enqueue_once(connection: redis.Redis, queue: Queue, template: Mapping[str, Any], chunk: Sequence[NewJob]) -> None:
    with redis_errors():
        try:
            _write(connection, queue, template, chunk)
        except (redis.ConnectionError, redis.TimeoutError):
            if not connection.exists(f"{RQ_KEY_PREFIX}:job:{chunk[0].job_id}"):
                _write(connection, queue, template, chunk)


def _write(connection: redis.Redis, queue: Queue, template: Mapping[str, Any], chunk: Sequence[NewJob]) -> None:
    """Write RQ's records and queue entries in one transaction. An id written twice does no harm: claims drop it."""
    with connection.pipeline() as pipeline:
        pipeline.sadd(Queue.redis_queues_keys, queue.key)
        for job in chunk:
            at = utcformat(now())
            record: dict[Any, Any] = {
                **template,
                "created_at": at,
                "enqueued_at": at,
                "data": zlib.compress(json.dumps([FUNCTION_NAME, None, [job.payload], {}]).encode()),
                "description": get_call_string(FUNCTION_NAME, [job.payload], {}, max_length=DESCRIPTION_CHARACTERS),
                TENANT_FIELD: job.payload.get("tenant", DEFAULT_TENANT),
            }
            pipeline.hset(f"{RQ_KEY_PREFIX}:job:{job.job_id}", mapping=record)
        pipeline.rpush(queue.key, *(job.job_id for job in chunk))
        pipeline.execute()


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
