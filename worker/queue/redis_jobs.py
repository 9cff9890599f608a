"""Jobs as Redis knows them: for those that were not recorded and that no worker has claimed, which SQL has not seen."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import cast

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.queue.connection import redis_errors
from worker.queue.queue_records import RecordError, read_date, read_payload, read_record
from worker.records import JobState

WINDOW_JOBS = 500  # read at once

# RQ's word for a status -> ours. A job that RQ keeps outside of its queues (deferred, scheduled) waits as well.
STATES = {
    "started": JobState.RUNNING,
    "finished": JobState.DONE,
    "failed": JobState.FAILED,
    "stopped": JobState.CANCELLED,
    "canceled": JobState.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class RedisJob:
    """What a job's record in Redis tells. `problem` says why a record is no prompt job; it has no payload then."""

    id: str
    queue: str
    state: JobState
    enqueued_at: datetime | None
    payload: str | None
    problem: str | None
    due_at: datetime | None = None  # UTC, of a delayed job


def find_redis_job(connection: redis.Redis, job_id: str) -> RedisJob | None:
    """Return the job of exactly this id, or None."""
    with redis_errors():
        fields = cast(dict[bytes, bytes], connection.hgetall(f"{RQ_KEY_PREFIX}:job:{job_id}"))
    if not fields:
        return None
    queue = fields.get(b"origin", b"").decode("utf-8", "replace")
    payload, problem = None, None
    enqueued_at = read_date(fields.get(b"enqueued_at", b""))
    try:
        record = read_record(fields)
        payload, enqueued_at = record.payload_json, record.enqueued_at
    except RecordError as error:
        problem = str(error)
    return RedisJob(
        id=job_id,
        queue=queue,
        state=_state(fields.get(b"status")),
        enqueued_at=enqueued_at,
        payload=payload,
        problem=problem,
        due_at=_due_at(connection, queue, job_id) if fields.get(b"status") == b"scheduled" else None,
    )


def _due_at(connection: redis.Redis, queue: str, job_id: str) -> datetime | None:
    with redis_errors():
        score = connection.zscore(f"{RQ_KEY_PREFIX}:scheduled:{queue}", job_id)
    try:
        return None if score is None else datetime.fromtimestamp(score, UTC)
    except (OverflowError, ValueError):
        return None  # a time that nobody will see


def find_redis_states(connection: redis.Redis, job_ids: Iterable[str]) -> Mapping[str, JobState]:
    """Return the state of each job that Redis knows, in one round trip."""
    ids = list(job_ids)
    with redis_errors(), connection.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.hget(f"{RQ_KEY_PREFIX}:job:{job_id}", "status")
        statuses = pipeline.execute()
    return {job_id: _state(status) for job_id, status in zip(ids, statuses, strict=True) if status is not None}


def queue_names(connection: redis.Redis) -> tuple[str, ...]:
    """Return the names of all queues that ever held a job."""
    prefix = f"{RQ_KEY_PREFIX}:queue:"
    with redis_errors():
        keys = cast(set[bytes], connection.smembers(f"{RQ_KEY_PREFIX}:queues"))
    return tuple(sorted(key.decode("utf-8", "replace").removeprefix(prefix) for key in keys))


def find_batch_in_redis(connection: redis.Redis, batch_id: str) -> Iterator[str]:
    """Yield the ids of the batch's jobs that wait in any queue, are suspects of a crash, are parked for their tenant's
    limit, delayed or deferred. Reads every waiting record."""
    for queue in queue_names(connection):
        parked = f"pagemill:parked:{queue}".encode()
        tenants = cast(list[bytes], connection.zrange(parked, 0, -1))
        for key in (f"{RQ_KEY_PREFIX}:queue:{queue}".encode(), *(parked + b":" + tenant for tenant in tenants)):
            yield from _of_batch(connection, _waiting(connection, key), batch_id)
        groups = cast(list[bytes], connection.lrange(f"pagemill:suspects:{queue}", 0, -1))
        yield from _of_batch(connection, b" ".join(groups).split(), batch_id)
        for registry in ("scheduled", "deferred"):
            members = connection.zscan_iter(f"{RQ_KEY_PREFIX}:{registry}:{queue}", count=WINDOW_JOBS)
            yield from _of_batch(connection, (member for member, _ in members), batch_id)


def _waiting(connection: redis.Redis, key: bytes) -> Iterator[bytes]:
    """Yield the ids in a list, from its tail: what is claimed meanwhile moves none of those still to be read."""
    end = -1
    while window := cast(list[bytes], connection.lrange(key, end - WINDOW_JOBS + 1, end)):
        yield from window
        end -= WINDOW_JOBS


def _of_batch(connection: redis.Redis, job_ids: Iterable[bytes], batch_id: str) -> Iterator[str]:
    ids = iter(job_ids)
    while window := list(islice(ids, WINDOW_JOBS)):
        with connection.pipeline(transaction=False) as pipeline:
            for job_id in window:
                pipeline.hget(f"{RQ_KEY_PREFIX}:job:{job_id.decode('latin-1')}", "data")
            records = pipeline.execute(raise_on_error=False)  # what is no hash is no job of the batch
        for job_id, data in zip(window, records, strict=True):
            if isinstance(data, bytes) and _batch_of(data) == batch_id:
                yield job_id.decode()


def _batch_of(data: bytes) -> object:
    try:
        return read_payload(data).get("batch_id")
    except RecordError:
        return None


def forget_dead_jobs(connection: redis.Redis, jobs: Iterable[tuple[str, str, str]]) -> None:
    """Remove what is left of dead-lettered jobs: (queue, job id, raw) each. May be called again."""
    with redis_errors(), connection.pipeline(transaction=False) as pipeline:
        for queue, job_id, raw in jobs:
            pipeline.zrem(f"{RQ_KEY_PREFIX}:failed:{queue}", job_id)
            pipeline.lrem(f"pagemill:dead:{queue}", 1, raw)
            pipeline.delete(f"{RQ_KEY_PREFIX}:job:{job_id}", f"{RQ_KEY_PREFIX}:results:{job_id}")
        pipeline.execute()


def _state(status: bytes | None) -> JobState:
    return STATES.get((status or b"").decode("utf-8", "replace"), JobState.QUEUED)
