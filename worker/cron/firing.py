"""Carrying out a run: its jobs go to SQL, then to Redis, a part at a time, and then the run has ended.

Whatever interrupts that, the next scheduler goes on from what SQL knows. A part that is repeated changes nothing.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import redis
from sqlalchemy import Engine

from worker.cron.actions import parse_action
from worker.cron.records import Run, RunState, Schedule, log_fields
from worker.cron.run_jobs import Tick
from worker.cron.run_recorder import RunRecorder, Stopped
from worker.cron.run_store import CLAIM, Fenced, RunStore
from worker.cron.submitting import Submission
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.log_fields import at_hand
from worker.queue.connection import redis_errors
from worker.running.beats import Beat
from worker.running.failpoints import Failpoints, Point
from worker.settings_model import Settings

Clock = Callable[[], datetime]  # UTC; raises ServiceUnavailable
MOST_DEATHS = 5  # of schedulers that work on one run
KEEP_SECONDS = CLAIM.total_seconds() / 4

logger = logging.getLogger(__name__)


def redis_clock(connection: redis.Redis) -> Clock:
    """Return the clock that all schedulers share, whatever their machines' own ones say: that of Redis."""

    def now() -> datetime:
        with redis_errors():
            seconds, microseconds = connection.time()
        return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)

    return now


@dataclass(frozen=True, slots=True)
class Firer:
    """Carries out runs, for one scheduler. Safe to use from several threads."""

    holder: str  # the scheduler's name
    settings: Settings
    database: Engine
    connection: redis.Redis
    runs: RunStore
    clock: Clock
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
        num_deaths = run.epoch - 1 - run.num_failures
        if num_deaths >= MOST_DEATHS:  # workers are worth more than a run that may be what ends them
            raise PagemillError(f"{num_deaths} schedulers died while they submitted it; it is not tried again")
        recorder = RunRecorder(self.runs, run, self.clock, self.failpoints, self.stopped)
        submission = Submission(self.settings, self.database, self.connection, recorder, self._checking, run, schedule)
        done = submission.submit(parse_action(schedule.action))
        figures = {"num_jobs": done.num_jobs, "num_submitted": done.num_jobs, "message": done.message}
        self.runs.end(run, RunState.SUBMITTED, self.clock(), **figures)
        self.failpoints.reach(Point.RUN_ENDED)
        logger.info("schedule %s: batch %s is submitted, jobs: %d", schedule.name, run.batch_id, done.num_jobs)

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
