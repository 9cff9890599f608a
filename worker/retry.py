"""Queueing jobs again that failed, were cancelled or were dead-lettered."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.errors import InvalidJob
from worker.jobs import dump_job, parse_job
from worker.queue.connection import redis_errors
from worker.queue.submission import NewJob, enqueue
from worker.records import JobState
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

ENDED_REGISTRIES = ("failed", "canceled")
RETRIABLE = frozenset({JobState.FAILED, JobState.CANCELLED, JobState.DEAD})
WAITING_OR_HELD = frozenset({b"queued", b"started", b"deferred", b"scheduled"})  # RQ's statuses


class RetryOutcome(StrEnum):
    """What became of a request to retry a job."""

    RETRIED = "retried"
    DUE_NOW = "due_now"  # it was waiting out a back-off, which is over now
    WAITING = "waiting"  # it is in its queue already, or running
    EXPIRED = "expired"  # its deadline has passed
    DONE = "done"
    NO_PROMPT = "no_prompt"  # a dead record that is no prompt job
    UNKNOWN = "unknown"


def retry_jobs(
    store: JobStore, connection: redis.Redis, job_ids: Iterable[str], *, result_ttl_seconds: int
) -> Mapping[str, RetryOutcome]:
    """Queue jobs again under their ids, in SQL and then in Redis, and say what became of each; a back-off ends at once.

    Safe to repeat after a failure in between: a job that is queued in SQL but not in Redis is put there.
    Raises ServiceUnavailable and TryLater as the store and the queue do.
    """
    return {job_id: _retry(store, connection, job_id, result_ttl_seconds) for job_id in dict.fromkeys(job_ids)}


def _retry(store: JobStore, connection: redis.Redis, job_id: str, result_ttl_seconds: int) -> RetryOutcome:
    job = store.job(job_id)
    if job is None:
        return RetryOutcome.UNKNOWN
    if job.state is JobState.DONE:
        return RetryOutcome.DONE
    if job.state in RETRIABLE:
        payload = _prompt_of(job)
        if payload is None:
            return RetryOutcome.NO_PROMPT
        if job.deadline_at is not None and job.deadline_at <= _redis_time(connection):
            return RetryOutcome.EXPIRED
        store.mark_retried([job_id])
        _enqueue_anew(connection, job, payload, result_ttl_seconds)
        return RetryOutcome.RETRIED
    payload = _prompt_of(job)
    with redis_errors():
        status = connection.hget(f"{RQ_KEY_PREFIX}:job:{job_id}", "status")
        was_delayed = connection.zadd(f"{RQ_KEY_PREFIX}:scheduled:{job.queue}", {job_id: 1}, xx=True, ch=True)
    if was_delayed:
        return RetryOutcome.DUE_NOW
    if job.state is JobState.QUEUED and status not in WAITING_OR_HELD and payload is not None:
        _enqueue_anew(connection, job, payload, result_ttl_seconds)
        return RetryOutcome.RETRIED
    return RetryOutcome.WAITING


def _redis_time(connection: redis.Redis) -> datetime:
    with redis_errors():
        seconds, microseconds = connection.time()
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _enqueue_anew(
    connection: redis.Redis, job: JobDetail, payload: Mapping[str, object], result_ttl_seconds: int
) -> None:
    """Replace the job's old record, which may have expired, by a new one at the end of its queue."""
    with redis_errors(), connection.pipeline() as pipeline:
        for registry in ENDED_REGISTRIES:
            pipeline.zrem(f"{RQ_KEY_PREFIX}:{registry}:{job.queue}", job.id)
        pipeline.delete(f"{RQ_KEY_PREFIX}:job:{job.id}", f"pagemill:tokens:{job.id}")
        pipeline.execute()
    for _ in enqueue(connection, [NewJob(job.id, payload)], queue=job.queue, result_ttl_seconds=result_ttl_seconds):
        pass


def _prompt_of(job: JobDetail) -> Mapping[str, object] | None:
    """Return the payload of a prompt job, None for a raw record."""
    try:
        fields = json.loads(job.payload)
        return dump_job(parse_job(fields)) if isinstance(fields, dict) else None
    except (ValueError, InvalidJob):
        return None
