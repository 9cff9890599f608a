"""Suspects, as the tests of the queue see them."""

from typing import Any

import redis

from worker.queue.claim_replies import Claimed
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import Suspects


def suspect_groups(connection: redis.Redis, queue: str = "default") -> list[list[str]]:
    """Return the groups of suspects that wait, the next one first."""
    entries: Any = connection.lrange(f"pagemill:suspects:{queue}", 0, -1)
    return [entry.decode().split() for entry in entries]


def claim_suspects(connection: redis.Redis, job_queue: JobQueue, queue: str = "default") -> Claimed:
    """Claim the next group on behalf of a worker, which is on duty for this long."""
    suspects = Suspects(connection, job_queue.worker_name, job_queue.lease_seconds)
    suspects.seek_duty([queue])
    claimed = suspects.claim()
    suspects.end_duty()
    return claimed
