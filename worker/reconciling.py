"""Reconciling the queue with SQL: what SQL has as waiting or running, and Redis lost, is put back under its id.

Redis may lose jobs (wiped, replaced, failed over to a replica, its last second not on disk); SQL has those that were
recorded at their submission or claimed since. Any number of processes may reconcile at once, and beside the workers and
producers: the queue's verbs create only what is absent, SQL changes only what is as it was read, and epochs fence the
rest. So a job need not be old to be looked at: its producer's own write, should it come later, finds it there.
"""

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Protocol

import redis

from worker.queue.connection import redis_errors
from worker.queue.places import Place, QueuePlaces
from worker.queue.submission import QueueRecord, QueueWriter
from worker.records import JobState
from worker.sql.store import JobStore
from worker.sql.unfinished import UnfinishedJob

PAGE_JOBS = 500
MAX_SUSPECTED = 2_000  # jobs adrift that one round looks into; the next one goes on
SILENT_SECONDS = 60.0  # a worker not heard of for so long holds nothing any more

logger = logging.getLogger(__name__)


class Finding(StrEnum):
    """What was found of a job, and done about it."""

    QUEUED = "queued"  # Redis has it waiting
    HELD = "held"  # a worker has it
    IN_FLIGHT = "in_flight"  # Redis lost it, but the worker that runs it lives, and will bring its result to SQL
    REBUILT = "rebuilt"  # Redis had lost it
    EXPIRED = "expired"  # Redis had lost it, and its deadline has passed: it has failed
    CANCELLED = "cancelled"  # Redis had it as cancelled, and now SQL has too
    ENDED = (
        "ended"  # Redis has it as ended and SQL not (yet): its worker is about to say so, or a tool of RQ's ended it
    )
    ADOPTED = "adopted"  # it was adrift in Redis
    UNREADABLE = "unreadable"  # its payload in SQL is not JSON


REPAIRED = (Finding.REBUILT, Finding.EXPIRED, Finding.CANCELLED, Finding.ADOPTED)

Findings = Mapping[Finding, int]
Tell = Callable[[int, int], None]  # jobs looked at so far, jobs in all
Rest = Callable[[float], None]  # gets the seconds that a page took in which nothing was amiss


def no_rest(seconds: float) -> None:
    """Go on at once."""


class Repairs(Protocol):
    """What is done about jobs that are not where they should be. Each method returns how many it changed."""

    def rebuild(self, jobs: Sequence[UnfinishedJob]) -> int: ...

    def expire(self, jobs: Sequence[UnfinishedJob]) -> int: ...

    def cancel(self, jobs: Sequence[UnfinishedJob]) -> int: ...

    def adopt(self, job_ids: Collection[str]) -> int: ...


class DryRun:
    """Repairs that only count."""

    def rebuild(self, jobs: Sequence[UnfinishedJob]) -> int:
        return len(jobs)

    def expire(self, jobs: Sequence[UnfinishedJob]) -> int:
        return len(jobs)

    def cancel(self, jobs: Sequence[UnfinishedJob]) -> int:
        return len(jobs)

    def adopt(self, job_ids: Collection[str]) -> int:
        return len(job_ids)


class RealRepairs:
    """Repairs in SQL and Redis, in this order: what is interrupted in between is found again."""

    def __init__(self, store: JobStore, connection: redis.Redis, result_ttl_seconds: int) -> None:
        self._store = store
        self._writer = QueueWriter(connection, result_ttl_seconds)
        self._places = QueuePlaces(connection)

    def rebuild(self, jobs: Sequence[UnfinishedJob]) -> int:
        """Put jobs at the ends of their queues, under their ids and with the times of their submission."""
        ran = [job for job in jobs if job.state is JobState.RUNNING]
        gone_on = {job.job_id for job in ran} - self._store.requeue_lost(ran)
        records: dict[str, list[QueueRecord]] = defaultdict(list)
        for job in jobs:
            if job.job_id not in gone_on:
                records[job.queue].append(_queue_record(job))
        return sum(self._writer.write(queue, of_queue) for queue, of_queue in records.items())

    def expire(self, jobs: Sequence[UnfinishedJob]) -> int:
        return len(self._store.expire_lost(jobs))

    def cancel(self, jobs: Sequence[UnfinishedJob]) -> int:
        return len(self._store.cancel_lost(jobs))

    def adopt(self, job_ids: Collection[str]) -> int:
        return self._places.adopt(job_ids)


class Reconciler:
    """Compares SQL with Redis, page by page: memory is that of a page, and of 8 bytes for each job that waits."""

    def __init__(self, store: JobStore, connection: redis.Redis, repairs: Repairs, rest: Rest = no_rest) -> None:
        """`rest` may pause where there is no hurry: whoever runs an engine beside this needs the processor."""
        self._store = store
        self._connection = connection
        self._repairs = repairs
        self._rest = rest

    def run(self, tell: Tell, stopped: Callable[[], bool]) -> Findings:
        """Look at every job that has not ended, and at every record of Redis; repair what is amiss.

        `tell` hears of each page; `stopped` ends the round early. Raises ServiceUnavailable or TryLater; what was
        repaired until then stays so.
        """
        places = QueuePlaces(self._connection)
        findings: Counter[Finding] = Counter()
        adrift = self._look_through_sql(places, findings, tell, stopped)
        started = time.monotonic()
        for job_ids in places.strays():
            if stopped() or len(adrift) >= MAX_SUSPECTED:
                break
            adrift.update(job_ids)
            self._rest(time.monotonic() - started)
            started = time.monotonic()
        findings[Finding.ADOPTED] = self._repairs.adopt(adrift)
        return {finding: findings[finding] for finding in Finding}

    def _look_through_sql(
        self, places: QueuePlaces, findings: Counter[Finding], tell: Tell, stopped: Callable[[], bool]
    ) -> set[str]:
        """Repair what SQL knows of. Returns the ids of jobs that seem to be adrift in Redis."""
        adrift: set[str] = set()
        unfinished = self._store.count_unfinished()
        last: UnfinishedJob | None = None
        num_seen = 0
        while unfinished.last_enqueued_at is not None and not stopped():
            started, num_repaired = time.monotonic(), _num_repaired(findings)
            page = self._store.unfinished(last, unfinished.last_enqueued_at, PAGE_JOBS)
            if not page:
                break
            last = page[-1]
            adrift.update(self._look_at(page, places, findings))
            num_seen += len(page)
            tell(num_seen, max(num_seen, unfinished.number))
            if _num_repaired(findings) == num_repaired:
                self._rest(time.monotonic() - started)
        return adrift

    def _look_at(self, page: Sequence[UnfinishedJob], places: QueuePlaces, findings: Counter[Finding]) -> Sequence[str]:
        now = self._redis_time()
        sorted_out: dict[Finding, list[UnfinishedJob]] = defaultdict(list)
        for job, place in zip(page, places.locate([job.job_id for job in page]), strict=True):
            sorted_out[_finding(job, place, now)].append(job)
        findings[Finding.REBUILT] += self._repairs.rebuild(sorted_out.pop(Finding.REBUILT, []))
        findings[Finding.EXPIRED] += self._repairs.expire(sorted_out.pop(Finding.EXPIRED, []))
        findings[Finding.CANCELLED] += self._repairs.cancel(sorted_out.pop(Finding.CANCELLED, []))
        adrift = [job.job_id for job in sorted_out.pop(Finding.ADOPTED, [])]
        findings.update({finding: len(jobs) for finding, jobs in sorted_out.items()})
        return adrift

    def _redis_time(self) -> datetime:
        with redis_errors():
            seconds, microseconds = self._connection.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _num_repaired(findings: Findings) -> int:
    return sum(findings[finding] for finding in REPAIRED)


def _finding(job: UnfinishedJob, place: Place, now: datetime) -> Finding:
    """Return what is to be done about a job of SQL that is at `place` in Redis."""
    if place is Place.CANCELLED:
        return Finding.HELD if _is_held(job, now) else Finding.CANCELLED  # its worker has heard of it, and ends it
    if place is not Place.ABSENT:
        return {
            Place.WAITING: Finding.QUEUED,
            Place.HELD: Finding.HELD,
            Place.ADRIFT: Finding.ADOPTED,
            Place.ENDED: Finding.ENDED,
        }[place]
    if _is_held(job, now):
        return Finding.IN_FLIGHT
    if job.deadline_at is not None and job.deadline_at <= now:
        return Finding.EXPIRED
    return Finding.REBUILT if _is_readable(job) else Finding.UNREADABLE


def _is_held(job: UnfinishedJob, now: datetime) -> bool:
    """Tell whether the worker that runs the job lives: its result is on its way to SQL, whatever Redis says."""
    seen_at = job.holder_seen_at
    return job.state is JobState.RUNNING and seen_at is not None and now - seen_at < timedelta(seconds=SILENT_SECONDS)


def _is_readable(job: UnfinishedJob) -> bool:
    try:
        return isinstance(json.loads(job.payload), dict)
    except (ValueError, RecursionError):
        logger.exception("job %s cannot be queued again: its payload in SQL is not a JSON object", job.job_id)
        return False


def _queue_record(job: UnfinishedJob) -> QueueRecord:
    return QueueRecord(
        job_id=job.job_id,
        payload=json.loads(job.payload),
        payload_json=job.payload,
        enqueued_at=job.enqueued_at,
        epoch=job.epoch or None,
        retries=job.retry_count or None,
        due_at=job.retry_at,
    )
