"""Submitting prompt jobs: validated, recorded in SQL where that is asked for, then put into their queue.

What it writes to Redis is what `rq.Queue(name, serializer="json").enqueue("pagemill.prompt", {...})` writes, only
faster, and the name of the tenant beside it. SQL comes first: a queue that is lost afterwards is rebuilt from there.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Protocol
from uuid import uuid4

import redis
from rq import Queue
from rq.serializers import JSONSerializer
from rq.utils import get_call_string, utcformat

from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.jobs import DEFAULT_TENANT, FUNCTION_NAME, PromptJob, dump_job, parse_job
from worker.queue.scripts import Argument, QueueScripts

DEFAULT_QUEUE = "default"
DEFAULT_RESULT_TTL_SECONDS = 86_400
NO_TIMEOUT = -1  # RQ's: a job ends by its own limits, never because it waited inside a batch
CHUNK_JOBS = 500  # per transaction: bounds the time that one takes
DESCRIPTION_CHARACTERS = 75  # of each argument, as RQ cuts them
MICROSECOND = timedelta(microseconds=1)
JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)  # of an id that a producer chooses
JOB_ID_RULE = "1 to 128 letters, digits, '-' and '_'"

PromptLike = PromptJob | Mapping[str, Any] | str  # a job, its JSON object, or only its prompt


@dataclass(frozen=True, slots=True)
class NewJob:
    """A valid job that has its id but is not in the queue yet."""

    job_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """What a job's record in the queue is made of. `enqueued_at` and `due_at` are UTC.

    `epoch` is that of the job's latest claim, None before the first. A job that is `due_at` later waits until then.
    """

    job_id: str
    payload: Mapping[str, Any]
    payload_json: str
    enqueued_at: datetime
    epoch: int | None = None
    retries: int | None = None
    due_at: datetime | None = None


class Recorder(Protocol):
    """Where submitted jobs are written before Redis has them."""

    def record(self, queue: str, records: Sequence[QueueRecord]) -> None:
        """Write jobs as queued, those that are there already as they are: all of them or, where it raises, none."""


def prepare(jobs: Iterable[PromptLike]) -> tuple[NewJob, ...]:
    """Validate jobs and give them ids; touches no server. Raises InvalidJob for the first that breaks a rule."""
    return tuple(prepare_one(job) for job in jobs)


def prepare_one(job: PromptLike) -> NewJob:
    """Validate a job and give it an id. Raises InvalidJob."""
    return NewJob(uuid4().hex, valid_payload(job))


def valid_payload(job: PromptLike) -> dict[str, Any]:
    """Return a job's JSON object, defaults left out. Raises InvalidJob."""
    return dump_job(job if isinstance(job, PromptJob) else parse_job(payload_of(job)))


def payload_of(job: PromptLike) -> Mapping[str, Any]:
    """Return a job's JSON object, unchecked unless it is a PromptJob."""
    if isinstance(job, str):
        return {"prompt": job}
    return dump_job(job) if isinstance(job, PromptJob) else job


def enqueue(
    connection: redis.Redis,
    jobs: Iterable[NewJob],
    *,
    queue: str = DEFAULT_QUEUE,
    result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS,
    recorder: Recorder | None = None,
) -> Iterator[tuple[str, ...]]:
    """Enqueue prepared jobs in chunks of at most `CHUNK_JOBS`, yielding the ids of each when it is accepted.

    With a recorder a chunk is accepted once that has it, else once Redis has it; each chunk is there as a whole or not
    at all, and jobs enqueued again, after an error, are there once. Memory is that of one chunk if `jobs` is lazy.

    Raises TryLater when Redis is full and ServiceUnavailable when it or SQL cannot be reached, saying how many jobs
    are accepted. Jobs that are recorded, but that Redis did not take, have been yielded then.
    """
    writer = QueueWriter(connection, result_ttl_seconds)
    num_accepted = 0
    coming = iter(jobs)
    while chunk := tuple(islice(coming, CHUNK_JOBS)):
        ids = tuple(job.job_id for job in chunk)
        records = _queue_records(chunk)
        try:
            if recorder is not None:
                recorder.record(queue, records)
        except PagemillError as error:
            raise type(error)(f"{error}; {num_accepted} jobs are in the queue") from None
        try:
            writer.write(queue, records)
        except (ServiceUnavailable, TryLater) as error:
            if recorder is None:
                raise type(error)(f"{error}; {num_accepted} jobs are in the queue") from None
            yield ids
            raise type(error)(
                f"{error}; {num_accepted} jobs are in the queue, {len(ids)} more are recorded in SQL, and a worker or "
                "`pagemill reconcile` will queue them"
            ) from None
        num_accepted += len(ids)
        yield ids


def submit(
    connection: redis.Redis,
    jobs: Iterable[PromptLike],
    *,
    queue: str = DEFAULT_QUEUE,
    result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS,
    recorder: Recorder | None = None,
) -> tuple[str, ...]:
    """Validate all jobs, then enqueue them. Returns their ids in order; errors are those of `prepare` and `enqueue`."""
    chunks = enqueue(connection, prepare(jobs), queue=queue, result_ttl_seconds=result_ttl_seconds, recorder=recorder)
    return tuple(job_id for chunk in chunks for job_id in chunk)


class QueueWriter:
    """Writes jobs' records and their queue entries. An id that Redis knows, it leaves as it is."""

    def __init__(self, connection: redis.Redis, result_ttl_seconds: int) -> None:
        """`result_ttl_seconds` is how long Redis keeps results."""
        self._connection = connection
        self._scripts = QueueScripts(connection)
        self._result_ttl_seconds = result_ttl_seconds

    def write(self, queue: str, records: Sequence[QueueRecord]) -> int:
        """Put jobs at the end of `queue`; returns how many Redis did not know before. All or, where it raises, none.

        A call whose reply was lost is repeated once. Raises TryLater when Redis is full and ServiceUnavailable.
        """
        arguments = [queue, *self._shared(queue)]
        for record in records:
            arguments += _arguments(record)
        try:
            reply = self._scripts.call("enqueue", arguments)
        except ServiceUnavailable:
            reply = self._scripts.call("enqueue", arguments)
        return sum(reply)

    def _shared(self, queue: str) -> list[Argument]:
        """Return the number and the texts of the fields that every record has, in RQ's own words."""
        target = Queue(queue, connection=self._connection, serializer=JSONSerializer)
        job = target.create_job(FUNCTION_NAME, args=({},), timeout=NO_TIMEOUT, result_ttl=self._result_ttl_seconds)
        own = ("data", "description", "created_at", "enqueued_at")
        fields = {name: value for name, value in job.to_dict().items() if name not in own}
        texts: list[Argument] = [part for name, value in fields.items() for part in (name, value)]
        return [len(texts), *texts]


def _queue_records(jobs: Sequence[NewJob]) -> list[QueueRecord]:
    # A microsecond apart: what is rebuilt in the order of these times comes back in the order of submission.
    start = datetime.now(UTC)
    return [
        QueueRecord(job.job_id, job.payload, json.dumps(job.payload), start + place * MICROSECOND)
        for place, job in enumerate(jobs)
    ]


def _arguments(record: QueueRecord) -> tuple[Argument, ...]:
    """Return what enqueue.lua takes of a job, encoded as RQ does with its JSON serializer."""
    data = f'["{FUNCTION_NAME}", null, [{record.payload_json}], {{}}]'
    return (
        record.job_id,
        record.payload.get("tenant", DEFAULT_TENANT),
        zlib.compress(data.encode()),
        str(get_call_string(FUNCTION_NAME, [record.payload], {}, max_length=DESCRIPTION_CHARACTERS)),
        utcformat(record.enqueued_at),
        "" if record.epoch is None else record.epoch,
        "" if record.retries is None else record.retries,
        "" if record.due_at is None else record.due_at.timestamp(),
        " ".join(record.payload.get("inputs", ())),
    )
