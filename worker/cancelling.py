"""Cancelling jobs, by their ids or a whole batch: in SQL first, then in Redis.

What SQL has as cancelled is never run again, whatever Redis says: should this stop half-way, the job's next claim is
only acknowledged. A job that runs is SQL's to end when its worker has ended it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import redis

from worker.errors import InvalidJob
from worker.jobs import parse_job
from worker.queue.access import Cancellation, CancelOutcome, QueueAccess
from worker.queue.redis_jobs import RedisJob, find_batch_in_redis, find_redis_job
from worker.sql.job_changes import SubmittedJob
from worker.sql.store import JobStore

CHUNK_JOBS = 500  # per transaction and script


def cancel_jobs(
    store: JobStore, connection: redis.Redis, job_ids: Iterable[str]
) -> Iterator[Mapping[str, Cancellation]]:
    """Cancel jobs of exactly these ids, yielding the answers chunk by chunk. Safe to repeat.

    Raises ServiceUnavailable and TryLater as the store and the queue do.
    """
    access = QueueAccess(connection)
    distinct = iter(dict.fromkeys(job_ids))
    while chunk := list(islice(distinct, CHUNK_JOBS)):
        yield _cancel(store, access, chunk)


def cancel_batch(store: JobStore, connection: redis.Redis, batch_id: str) -> Iterator[Mapping[str, Cancellation]]:
    """Cancel what has not ended of a batch, yielding the answers chunk by chunk. Safe to repeat.

    Jobs that SQL has not heard of, because they were not recorded and no worker has claimed them, are searched for in
    Redis, which reads whatever waits there. Raises as `cancel_jobs`.
    """
    last_id = ""
    while chunk := store.unfinished_jobs(batch_id, last_id, CHUNK_JOBS):
        yield _cancel(store, QueueAccess(connection), chunk)
        last_id = chunk[-1]
    yield from cancel_jobs(store, connection, find_batch_in_redis(connection, batch_id))


def _cancel(store: JobStore, access: QueueAccess, job_ids: Sequence[str]) -> dict[str, Cancellation]:
    cancelled = store.cancel_queued(job_ids)
    answers = dict(access.cancel_many(job_ids))
    unheld = [job_id for job_id in job_ids if _is_cancelled(answers[job_id])]
    store.cancel_unheld(unheld)
    known = store.states(unheld)
    jobs = (find_redis_job(access.connection, job_id) for job_id in unheld if job_id not in known)
    store.record_cancelled([submitted for job in jobs if (submitted := _as_submitted(job)) is not None])
    for job_id in cancelled:  # also where Redis has lost it, or knew before SQL did
        answers[job_id] = Cancellation(CancelOutcome.CANCELLED_WAITING, answers[job_id].status)
    return answers


def _is_cancelled(answer: Cancellation) -> bool:
    """Tell whether Redis holds the job as cancelled; an earlier call may have ended before it told SQL."""
    return answer.outcome is CancelOutcome.CANCELLED_WAITING or answer.status == "canceled"


def _as_submitted(job: RedisJob | None) -> SubmittedJob | None:
    """Return the row that SQL gets for a job it has not heard of, or None for a record that is no prompt job."""
    if job is None or job.payload is None or job.enqueued_at is None:
        return None
    try:
        prompt = parse_job(json.loads(job.payload))
    except (ValueError, InvalidJob):
        return None
    return SubmittedJob(job.id, job.queue, prompt, job.payload, job.enqueued_at)
