"""Jobs that wait for others, as RQ keeps them."""

from typing import cast

import redis
from rq.job import Job

WAITING = frozenset({b"deferred", b"ready_to_enqueue"})  # statuses of a dependent job that has not been released


def forget_released(connection: redis.Redis, job: Job) -> None:
    """Take out of a job's dependents those that wait no more; call it before RQ releases them.

    Jobs that end together release what waits for all of them with the first, and RQ would queue that again with each
    other one.
    """
    dependents = sorted(cast(set[bytes], connection.smembers(job.dependents_key)))
    with connection.pipeline(transaction=False) as pipeline:
        for dependent in dependents:
            pipeline.hget(Job.key_for(dependent.decode()), "status")
        statuses = pipeline.execute()
    released = [dependent for dependent, status in zip(dependents, statuses, strict=True) if status not in WAITING]
    if released:
        connection.srem(job.dependents_key, *released)
