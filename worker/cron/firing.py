"""Carrying out a run: its jobs go to SQL, then to Redis, a part at a time, and then the run has ended.

Whatever interrupts that, the next scheduler goes on from what SQL knows. A part that is repeated changes nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis

from worker.cron.actions import JsonlAction, parse_action
from worker.cron.records import Run, RunState, Schedule, log_fields
from worker.cron.run_jobs import RunJobs, Tick, jobs_of_file, jobs_of_prompt
from worker.cron.run_store import CLAIM, Fenced, RunStore
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.jobs import parse_job
from worker.log_fields import at_hand
from worker.queue.connection import redis_errors
from worker.queue.submission import QueueRecord, enqueue
from worker.running.beats import Beat
from worker.running.failpoints import Failpoints, Point
from worker.sql.job_changes import SubmittedJob

Clock = Callable[[], datetime]  # UTC; raises ServiceUnavailable
KEEP_SECONDS = CLAIM.total_seconds() / 4

logger = logging.getLogger(__name__)


def redis_clock(connection: redis.Redis) -> Clock:
    """Return the clock that all schedulers share, whatever their machines' own ones say: that of Redis."""

    def now() -> datetime:
        with redis_errors():
            seconds, microseconds = connection.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    return now


class Stopped(Exception):
    """The scheduler is to end."""


@dataclass(frozen=True, slots=True)
class Firer:
    """Carries out runs, for one scheduler. Safe to use from several threads."""

    holder: str  # the scheduler's name
    runs: RunStore
    connection: redis.Redis
    clock: Clock
    result_ttl_seconds: int
    failpoints: Failpoints
    stopped: Callable[[], bool]
    tick: Tick = lambda number: None

    def claim_and_fire(self, run_id: str) -> None:
        """Carry out a run, unless somebody else does. Services that are down are logged; the run waits then."""
        try:
            claimed = self.runs.claim(run_id, self.holder, self.clock())
            if claimed is not None:
                self.fire(*claimed)
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("run %s waits: %s", run_id, error)

    def fire(self, run: Run, schedule: Schedule) -> Run:
        """Carry out a run that is claimed; return it as it is afterwards. Raises ServiceUnavailable where not even that
        can be written that something is down."""
        with at_hand(log_fields(schedule, run)):
            try:
                self._fire(run, schedule)
            except Fenced:
                logger.warning("schedule %s: another scheduler goes on with the run of %s", schedule.name, run.slot_at)
        return self.runs.run(run.id)

    def _fire(self, run: Run, schedule: Schedule) -> None:
        try:
            with self._keeping(run):
                self._carry_out(run, schedule)
        except Stopped:
            self.runs.release(run)
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("schedule %s: the run of %s waits: %s", schedule.name, run.slot_at, error)
            self.runs.put_off(run, str(error), self.clock())
        except PagemillError as error:
            logger.warning("schedule %s: the run of %s has failed: %s", schedule.name, run.slot_at, error)
            self.runs.end(run, RunState.FAILED, self.clock(), message=str(error))
        except Fenced:
            raise
        except Exception:
            logger.exception("schedule %s: the run of %s has failed", schedule.name, run.slot_at)
            self.runs.end(run, RunState.FAILED, self.clock(), message="unexpected error; the scheduler's log has it")

    def _carry_out(self, run: Run, schedule: Schedule) -> None:
        with self._jobs_of(run, schedule) as found:
            self.runs.settle(run, found.num_jobs, found.source_digest)
            recorder = _RunRecorder(self, run)
            chunks = enqueue(
                self.connection,
                found.jobs,
                queue=schedule.queue,
                result_ttl_seconds=self.result_ttl_seconds,
                recorder=recorder,
            )
            for ids in chunks:
                recorder.num_submitted += len(ids)
                self.failpoints.reach(Point.RUN_QUEUED)
        self.runs.end(run, RunState.SUBMITTED, self.clock(), num_submitted=found.num_jobs, message=None)
        self.failpoints.reach(Point.RUN_ENDED)
        logger.info("schedule %s: %d jobs submitted as batch %s", schedule.name, found.num_jobs, run.batch_id)

    def _jobs_of(self, run: Run, schedule: Schedule) -> AbstractContextManager[RunJobs]:
        action = parse_action(schedule.action)
        if isinstance(action, JsonlAction):
            return jobs_of_file(run, schedule, action, self._checking)
        return jobs_of_prompt(run, schedule, action)

    def _checking(self, number: int) -> None:
        self.tick(number)
        if self.stopped():
            raise Stopped

    @contextmanager
    def _keeping(self, run: Run) -> Iterator[None]:
        """Keep the claim while the block runs, however long it takes. One that is lost shows at the next write."""

        def keep() -> None:
            try:
                self.runs.keep(run, self.clock())
            except Fenced:
                beat.stop()

        beat = Beat(keep, KEEP_SECONDS, "keep a run's claim")
        thread = threading.Thread(target=beat.run, name="pagemill-run-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            beat.stop()
            thread.join()


class _RunRecorder:
    """Writes a run's jobs to SQL, and with them how far the run is."""

    def __init__(self, firer: Firer, run: Run) -> None:
        self._firer = firer
        self._run = run
        self.num_submitted = run.num_submitted

    def record(self, queue: str, records: Sequence[QueueRecord]) -> None:
        """See `worker.queue.submission.Recorder`. Raises Fenced and Stopped as well."""
        if self._firer.stopped():
            raise Stopped
        jobs = [
            SubmittedJob(record.job_id, queue, parse_job(record.payload), record.payload_json, record.enqueued_at)
            for record in records
        ]
        self._firer.runs.record(self._run, jobs, self.num_submitted, self._firer.clock())
        self._firer.failpoints.reach(Point.RUN_RECORDED)
