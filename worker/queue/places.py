"""Where jobs are in Redis, for many jobs at once; and finding those that got lost inside it."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from hashlib import blake2b
from typing import cast

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.queue.connection import redis_errors
from worker.queue.scripts import QueueScripts

LIST_PAGE = 1_000
SCAN_RECORDS = 1_000  # per call: bounds the time that a script holds the server
MAX_ADOPTED = 20  # per call, as each may search a whole list


class Place(StrEnum):
    """Where a job is."""

    ABSENT = "absent"
    WAITING = "waiting"  # in its queue, parked or suspected beside it, or where RQ keeps delayed and dependent jobs
    HELD = "held"  # an execution is alive
    ADRIFT = "adrift"  # it should wait or run, but no queue and no execution has it
    CANCELLED = "cancelled"
    ENDED = "ended"


ENDS = {
    "canceled": Place.CANCELLED,
    "stopped": Place.CANCELLED,
    "finished": Place.ENDED,
    "failed": Place.ENDED,
    "absent": Place.ABSENT,
    "held": Place.HELD,
    "started": Place.ADRIFT,
}


class QueuePlaces:
    """Locates jobs. What it knows of waiting lists is as of its first look at each: make one for each round.

    Errors of every method are those of `redis_errors`.
    """

    def __init__(self, connection: redis.Redis) -> None:
        self._connection = connection
        self._scripts = QueueScripts(connection)
        self._lists: dict[str, array[int]] = {}

    def locate(self, job_ids: Sequence[str]) -> tuple[Place, ...]:
        """Return where each job is. ADRIFT is a suspicion only, for the job may have moved meanwhile: see `adopt`."""
        reply = self._scripts.call("locate", job_ids)
        return tuple(
            self._place(job_id, status.decode("utf-8", "replace"), queue.decode("utf-8", "replace"))
            for job_id, (status, queue) in zip(job_ids, reply, strict=True)
        )

    def strays(self) -> Iterator[tuple[str, ...]]:
        """Look through all records for jobs that have started and that nobody holds; yields their ids by the page."""
        cursor = "0"
        while True:
            next_cursor, job_ids = self._scripts.call("strays", [cursor, SCAN_RECORDS])
            yield tuple(job_id.decode("utf-8", "replace") for job_id in job_ids)
            cursor = next_cursor.decode()
            if cursor == "0":
                return

    def adopt(self, job_ids: Iterable[str]) -> int:
        """Put those of the jobs that are adrift back at the heads of their queues; returns how many."""
        ids = list(job_ids)
        pages = (ids[start : start + MAX_ADOPTED] for start in range(0, len(ids), MAX_ADOPTED))
        return sum(len(self._scripts.call("adopt", page)) for page in pages)

    def _place(self, job_id: str, status: str, queue: str) -> Place:
        if status in ENDS:
            return ENDS[status]
        return Place.ADRIFT if status == "queued" and not self._is_listed(job_id, queue) else Place.WAITING

    def _is_listed(self, job_id: str, queue: str) -> bool:
        if queue not in self._lists:
            self._lists[queue] = array("Q", sorted(map(_number, self._read_waiting(queue))))
        listed, number = self._lists[queue], _number(job_id.encode())
        place = bisect_left(listed, number)
        return place < len(listed) and listed[place] == number

    def _read_waiting(self, queue: str) -> Iterator[bytes]:
        """Yield the ids of all that waits for a claim from this queue."""
        yield from self._read_list(f"{RQ_KEY_PREFIX}:queue:{queue}")
        parked = f"pagemill:parked:{queue}"
        with redis_errors():
            tenants = cast(list[bytes], self._connection.zrange(parked, 0, -1))
        for tenant in tenants:
            yield from self._read_list(f"{parked}:{tenant.decode('utf-8', 'replace')}")
        for group in self._read_list(f"pagemill:suspects:{queue}"):
            yield from group.split()

    def _read_list(self, key: str) -> Iterator[bytes]:
        """Yield a list's entries, the last ones first: places that are counted from the tail do not move when jobs are
        claimed, or put back at the head."""
        stop = -1
        while True:
            with redis_errors():
                page = cast(list[bytes], self._connection.lrange(key, stop - LIST_PAGE + 1, stop))
            yield from page
            if len(page) < LIST_PAGE:
                return
            stop -= LIST_PAGE


def _number(job_id: bytes) -> int:
    """Return what stands for an id: eight bytes a job is what a million of them may cost here."""
    return int.from_bytes(blake2b(job_id, digest_size=8).digest())
