"""Which workers take jobs from a queue, as RQ's lists of them have it."""

from collections.abc import Iterable

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.queue.connection import redis_errors


def draining(connection: redis.Redis, queue: str, worker_names: Iterable[str]) -> frozenset[str]:
    """Return those of the workers that drain `queue`. A worker that died stays in RQ's lists for a while."""
    names = list(worker_names)
    with redis_errors(), connection.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.sismember(f"{RQ_KEY_PREFIX}:workers:{queue}", f"{RQ_KEY_PREFIX}:worker:{name}")
        found = pipeline.execute()
    return frozenset(name for name, is_member in zip(names, found, strict=True) if is_member)
