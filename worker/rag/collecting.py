"""Taking over summaries whose jobs have ended: by every worker, by who waits for them, and by each new run."""

import redis

from worker.cancelling import cancel_jobs
from worker.sql.store import JobStore


def collect_summaries(store: JobStore, connection: redis.Redis) -> int:
    """End what has ended, and cancel jobs that are of no use any more; safe to repeat, and to run beside others.

    Returns how many summaries ended. Raises ServiceUnavailable and TryLater as the store and the queue do.
    """
    total = 0
    while (collected := store.collect_summaries()).number:
        for _ in cancel_jobs(store, connection, collected.abandoned):
            pass
        total += collected.number
    return total
