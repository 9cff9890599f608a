"""Jobs as Redis knows them: for those that no worker has claimed yet, which SQL has not seen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.connection import redis_errors
from worker.queue_records import RecordError, read_date, read_record
from worker.records import JobState

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


def find_redis_job(connection: redis.Redis, job_id: str) -> RedisJob | None:
    """Return the job of exactly this id, or None."""
    with redis_errors():
        fields = cast(dict[bytes, bytes], connection.hgetall(f"{RQ_KEY_PREFIX}:job:{job_id}"))
    if not fields:
        return None
    payload, problem = None, None
    try:
        payload = read_record(fields).payload_json
    except RecordError as error:
        problem = str(error)
    return RedisJob(
        id=job_id,
        queue=fields.get(b"origin", b"").decode("utf-8", "replace"),
        state=_state(fields.get(b"status")),
        enqueued_at=read_date(fields.get(b"enqueued_at", b"")),
        payload=payload,
        problem=problem,
    )


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


def _state(status: bytes | None) -> JobState:
    return STATES.get((status or b"").decode("utf-8", "replace"), JobState.QUEUED)
