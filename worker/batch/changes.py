"""Changing a batch after its submission: cancelling it, giving it up for a new one, running what failed again."""

from collections import Counter
from collections.abc import Mapping

import redis

from worker.batch.records import BatchStatus, job_id_of
from worker.batch.results import BatchResults
from worker.batch.store import BatchStore
from worker.cancelling import cancel_batch
from worker.errors import PagemillError
from worker.retry import RetryOutcome, retry_jobs
from worker.sql.store import JobStore


def known_batch(store: BatchStore, batch_id: str) -> BatchStatus:
    """Return a batch. Raises PagemillError for one that is not there."""
    status = store.status(batch_id)
    if status is None:
        raise PagemillError(f"no batch {batch_id} that was made of a file is known; see `pagemill batch list`")
    return status


def cancel(store: BatchStore, connection: redis.Redis, batch_id: str) -> BatchStatus:
    """Cancel what has not ended of a batch, and return it; one that has ended stays as it is. Safe to repeat.

    Jobs that run are ended by their workers, within a step: until then the batch is `cancelling`.
    """
    if known_batch(store, batch_id).batch.end is None:
        store.start_cancelling(batch_id)
        for _ in cancel_batch(JobStore(store.engine), connection, batch_id):
            pass
    return known_batch(store, batch_id)


def retry_failed(
    store: BatchStore, connection: redis.Redis, batch_id: str, *, result_ttl_seconds: int
) -> Mapping[RetryOutcome, int]:
    """Queue the jobs of a batch again that failed, expired or were cancelled; return what became of how many."""
    results, jobs = BatchResults(store.engine), JobStore(store.engine)
    outcomes: Counter[RetryOutcome] = Counter()
    after = 0
    while lines := results.unhappy_lines(batch_id, after):
        ids = [job_id_of(batch_id, line) for line in lines]
        outcomes.update(retry_jobs(jobs, connection, ids, result_ttl_seconds=result_ttl_seconds).values())
        after = lines[-1]
    if outcomes[RetryOutcome.RETRIED]:
        store.reopen(batch_id)
    return outcomes
