"""How many jobs wait in each queue: told by one worker of all that drain the same one, so that sums are right."""

import time
from collections.abc import Callable, Mapping, Sequence

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.queue.connection import redis_errors

TELLER_KEY = "pagemill:metrics:teller:"  # + the queue: the worker that tells of it
BEATS_TO_MISS = 3  # before another worker tells


class QueueDepths:
    """The depths that this worker tells, as of its last beat. One thread refreshes; any reads."""

    def __init__(
        self,
        connection: redis.Redis,
        worker_name: str,
        queues: Sequence[str],
        beat_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._worker_name = worker_name
        self._queues = tuple(queues)
        self._term_seconds = BEATS_TO_MISS * beat_seconds
        self._clock = clock
        self._told: Mapping[str, int] = {}
        self._told_at = clock()

    @property
    def latest(self) -> Mapping[str, int]:
        """The depth of each queue that this worker tells of; none once that may be another's turn."""
        return self._told if self._clock() - self._told_at < self._term_seconds else {}

    def refresh(self) -> None:
        """Take the queues that nobody tells of, keep those that are ours, and look how deep they are. Raises
        ServiceUnavailable or TryLater."""
        asked_at, term_ms, told = self._clock(), max(1, round(self._term_seconds * 1000)), {}
        with redis_errors(), self._connection.pipeline(transaction=False) as pipeline:
            for queue in self._queues:
                pipeline.set(TELLER_KEY + queue, self._worker_name, nx=True, px=term_ms)
                pipeline.get(TELLER_KEY + queue)
                pipeline.llen(f"{RQ_KEY_PREFIX}:queue:{queue}")
            replies = pipeline.execute()
            for queue, teller, depth in zip(self._queues, replies[1::3], replies[2::3], strict=True):
                if teller == self._worker_name.encode():
                    told[queue] = depth
                    pipeline.pexpire(TELLER_KEY + queue, term_ms)
            pipeline.execute()
        self._told, self._told_at = told, asked_at
