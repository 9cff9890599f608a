"""The scheduler: of any number of them one leads, and turns slots that are due into runs and runs into jobs."""

import logging
import threading
import time
from collections.abc import Callable

import redis
from sqlalchemy import Engine

from worker.cron.firing import Clock, Firer, redis_clock
from worker.cron.leader import Leadership, NotLeader
from worker.cron.planning import plan
from worker.cron.records import Run, RunState, Schedule, log_fields
from worker.cron.run_store import RunStore
from worker.cron.schedule_store import ScheduleStore
from worker.errors import PagemillError, ServiceUnavailable, TryLater
from worker.log_fields import at_hand
from worker.running.failpoints import Failpoints, Point
from worker.settings_model import Settings

TICK_SECONDS = 1.0  # between two looks at the schedules, whose slots are minutes
RUNS_AT_ONCE = 4

logger = logging.getLogger(__name__)


class Scheduler:
    """One scheduler. `tick` is called by one thread, every `TICK_SECONDS`. Runs have threads of their own, so that a
    long one holds up no other."""

    def __init__(
        self,
        name: str,
        database: Engine,
        connection: redis.Redis,
        settings: Settings,
        failpoints: Failpoints,
        *,
        stopped: Callable[[], bool],
        clock: Clock | None = None,
    ) -> None:
        """`name` is unlike any other scheduler's; `clock` is Redis's unless another is given."""
        self._schedules = ScheduleStore(database)
        self._runs = RunStore(database)
        self._leadership = Leadership(database, name)
        self._clock = clock or redis_clock(connection)
        self._failpoints = failpoints
        self._firer = Firer(name, settings, database, connection, self._runs, self._clock, failpoints, stopped)
        self._threads: dict[str, threading.Thread] = {}
        self._is_leading = False
        self._unreadable: set[str] = set()  # schedules that this machine cannot read, told once

    def tick(self) -> None:
        """Lead if nobody else does, open the runs of slots that are due, carry runs out. Raises ServiceUnavailable or
        TryLater; anything else is logged, as nothing that is wrong with a schedule may end a worker."""
        try:
            if self._schedules.any_active():
                self._lead()
        except PagemillError:
            raise
        except Exception:
            logger.exception("looking for due schedules failed")

    def join(self, patience_seconds: float) -> None:
        """Wait a while for the runs that are being carried out."""
        deadline = time.monotonic() + patience_seconds
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self, patience_seconds: float) -> None:
        """Let another scheduler lead, once the runs that are being carried out have ended, or stopped."""
        self.join(patience_seconds)
        try:
            if self._is_leading:
                self._leadership.leave(self._clock())
        except (ServiceUnavailable, TryLater) as error:
            logger.warning("cannot hand the schedules over: %s", error)

    def _lead(self) -> None:
        now = self._clock()
        was_leading, self._is_leading = self._is_leading, self._leadership.hold(now)
        if self._is_leading and not was_leading:
            logger.info("this is the scheduler that leads now")
        if not self._is_leading:
            return
        for schedule in self._schedules.due(now):
            self._open(schedule)
        self._threads = {run_id: thread for run_id, thread in self._threads.items() if thread.is_alive()}
        for run_id in self._runs.claimable(now, RUNS_AT_ONCE):
            if run_id not in self._threads and len(self._threads) < RUNS_AT_ONCE:
                self._start(run_id)

    def _open(self, schedule: Schedule) -> None:
        now = self._clock()
        try:
            settled = plan(schedule, now)
        except PagemillError as error:  # written by a later version, or in a time zone that is new
            if schedule.id not in self._unreadable:
                logger.warning("schedule %s cannot fire on this machine: %s", schedule.name, error)
            self._unreadable.add(schedule.id)
            return
        self._failpoints.reach(Point.SLOT_DUE)
        try:
            runs = self._schedules.open_runs(schedule, settled, now, self._leadership)
        except NotLeader:
            return
        for run in runs:
            with at_hand(log_fields(schedule, run)):
                _tell(schedule, run)
        self._failpoints.reach(Point.RUN_OPENED)

    def _start(self, run_id: str) -> None:
        thread = threading.Thread(
            target=self._firer.claim_and_fire, args=(run_id,), name=f"pagemill-run-{run_id[:8]}", daemon=True
        )
        self._threads[run_id] = thread
        thread.start()


def _tell(schedule: Schedule, run: Run) -> None:
    if run.state is RunState.SKIPPED:
        others = f" and {run.num_slots - 1} more, to {run.last_slot_at}," if run.num_slots > 1 else ""
        logger.warning(
            "schedule %s: the slot of %s%s was skipped (%s): %s",
            schedule.name,
            run.slot_at,
            others,
            run.skip_reason,
            run.message,
        )
    else:
        logger.info("schedule %s fires for the slot of %s", schedule.name, run.slot_at)
