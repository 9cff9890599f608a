"""Moving committed jobs from the outbox to the queue: into `jobs` first, then into Redis, and out of the outbox last.

Any number of relays may run at once; each worker is one. Rows are locked while they are recorded, and skipped by the
others. What a relay leaves half-way, another one finishes: every step may be repeated, and none makes a job twice.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

import redis

from worker.queue.submission import QueueRecord, QueueWriter
from worker.running.failpoints import Failpoints, Point
from worker.sql.outbox import OutboxPage
from worker.sql.store import JobStore

PAGE_ROWS = 500

logger = logging.getLogger(__name__)


class Relay:
    """Empties the outbox when told to."""

    def __init__(
        self,
        store: JobStore,
        connection: redis.Redis,
        result_ttl_seconds: int,
        failpoints: Failpoints,
        stopped: Callable[[], bool],
    ) -> None:
        """`stopped` ends a round early."""
        self._store = store
        self._writer = QueueWriter(connection, result_ttl_seconds)
        self._failpoints = failpoints
        self._stopped = stopped

    def run(self) -> int:
        """Queue all that is committed; return how many jobs were moved on.

        Raises ServiceUnavailable or TryLater. What was recorded until then is queued later: by a relay, or when the
        queue is reconciled with SQL.
        """
        num_moved = 0
        while not self._stopped():
            page = self._store.take_outbox(PAGE_ROWS)
            if page.is_empty:
                break
            for job_id in page.dead:
                logger.warning("a row of the outbox is no job; see `pagemill dead show %s`", job_id)
            self._failpoints.reach(Point.OUTBOX_RECORDED)
            self._queue(page)
            self._failpoints.reach(Point.OUTBOX_QUEUED)
            self._store.clear_outbox(job.row_id for job in page.jobs)
            num_moved += len(page.jobs)
        return num_moved

    def _queue(self, page: OutboxPage) -> None:
        records: dict[str, list[QueueRecord]] = defaultdict(list)
        for job in page.jobs:
            records[job.queue].append(job.record)
        for queue, of_queue in records.items():
            self._writer.write(queue, of_queue)
