"""What RQ's tools see of functions' jobs, and the worker's leases on them."""

from typing import Any

import redis
from rq.job import Job

TASKS = "tests.functions.tasks"
ALL: dict[str, Any] = {"functions": (f"{TASKS}.*",)}
LEASES = "pagemill:leases:default"


def value(connection: redis.Redis, key: str) -> str:
    """Return what Redis has under a key; '' is nothing."""
    found: Any = connection.get(key)
    return (found or b"").decode()


def leases(connection: redis.Redis) -> dict[bytes, float]:
    """Return the ends of all leases, in seconds."""
    members: Any = connection.zrange(LEASES, 0, -1, withscores=True)
    return dict(members)


def reason(job: Job) -> str:
    """Return why a job failed, as RQ's tools show it."""
    result = job.latest_result()
    assert result is not None
    return result.exc_string or ""
