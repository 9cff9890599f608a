"""Jobs of tenants, and their ends: what the tests of limits share."""

import redis

from worker.client import submit
from worker.queue.job_queue import Acknowledgement
from worker.records import AttemptState, Claim


def submit_for(connection: redis.Redis, tenant: str, count: int, queue: str = "default") -> list[str]:
    """Submit `count` jobs of a tenant; return their ids."""
    return list(submit(connection, [{"prompt": "x", "tenant": tenant}] * count, queue=queue))


def done(claim: Claim) -> Acknowledgement:
    """Return the end of a job that went well."""
    return Acknowledgement(claim, AttemptState.DONE, {"text": "x"})
