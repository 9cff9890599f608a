"""The life of a run in SQL, from the first scheduler that works on it to its end.

A scheduler claims a run for some seconds and keeps its claim while it works; the epoch in every WHERE fences one that
was cut off. Whatever it wrote until then is what the next one would have written: ids come from the slot.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, or_, select, update

from worker.cron.records import Run, RunState, Schedule
from worker.sql.database import reading, writing
from worker.sql.job_changes import SubmittedJob, add_queued
from worker.sql.tables import ScheduleRow, ScheduleRunRow

CLAIM = timedelta(seconds=10)
FIRST_PAUSE_SECONDS = 1.0  # before a run is tried again that met a service that was down
LONGEST_PAUSE_SECONDS = 60.0


class Fenced(Exception):
    """Another scheduler works on the run."""


class RunStore:
    """Every method is one transaction, and raises ServiceUnavailable when the database cannot be reached.

    Times are UTC, of the clock that all schedulers share.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database

    def claimable(self, now: datetime, limit: int) -> tuple[str, ...]:
        """Return the ids of runs that somebody should work on, the oldest slots first."""
        statement = select(ScheduleRunRow.id).where(_is_claimable(now)).order_by(ScheduleRunRow.slot_at).limit(limit)
        with reading(self._database) as connection:
            return tuple(connection.scalars(statement))

    def claim(self, run_id: str, holder: str, now: datetime) -> tuple[Run, Schedule] | None:
        """Take a run, unless somebody else has it or it has ended."""
        values = {"epoch": ScheduleRunRow.epoch + 1, "claimed_by": holder, "claimed_until": now + CLAIM}
        statement = update(ScheduleRunRow).where(ScheduleRunRow.id == run_id, _is_claimable(now)).values(values)
        with writing(self._database) as connection:
            if not connection.execute(statement).rowcount:
                return None
            run = connection.execute(_of(run_id)).mappings().one()
            of_run = select(ScheduleRow.__table__).where(ScheduleRow.id == run["schedule_id"])
            return Run(**run), Schedule(**connection.execute(of_run).mappings().one())

    def keep(self, run: Run, now: datetime) -> None:
        """Renew the claim. Raises Fenced."""
        with writing(self._database) as connection:
            _change(connection, run, claimed_until=now + CLAIM)

    def settle(self, run: Run, num_jobs: int, source_digest: str | None) -> None:
        """Write what the run is to submit. Raises Fenced."""
        with writing(self._database) as connection:
            _change(connection, run, num_jobs=num_jobs, source_digest=source_digest)

    def record(self, run: Run, jobs: Sequence[SubmittedJob], num_submitted: int, now: datetime) -> None:
        """Write jobs as queued, those that are there as they are. `num_submitted` are in Redis. Raises Fenced."""
        with writing(self._database) as connection:
            _change(connection, run, num_submitted=num_submitted, claimed_until=now + CLAIM)
            add_queued(connection, jobs)

    def end(self, run: Run, state: RunState, now: datetime, **columns: Any) -> None:
        """End a run. `columns` are those that its end settles. Raises Fenced."""
        with writing(self._database) as connection:
            _change(connection, run, state=state, ended_at=now, claimed_until=None, retry_at=None, **columns)

    def release(self, run: Run) -> None:
        """Let another scheduler go on. Raises Fenced."""
        with writing(self._database) as connection:
            _change(connection, run, claimed_until=None, num_failures=run.num_failures + 1)

    def put_off(self, run: Run, reason: str, now: datetime) -> None:
        """Let a run be tried again, by any scheduler, after a pause. Raises Fenced."""
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(run.num_failures, 10))
        with writing(self._database) as connection:
            _change(
                connection,
                run,
                claimed_until=None,
                num_failures=run.num_failures + 1,
                retry_at=now + timedelta(seconds=pause),
                message=reason,
            )

    def run(self, run_id: str) -> Run:
        """Return a run that is there."""
        with reading(self._database) as connection:
            return Run(**connection.execute(_of(run_id)).mappings().one())


def _of(run_id: str) -> Any:
    return select(ScheduleRunRow.__table__).where(ScheduleRunRow.id == run_id)


def _is_claimable(now: datetime) -> ColumnElement[bool]:
    """Return the condition that nobody works on a run. A claim longer than any is one of a clock that was set back."""
    until = ScheduleRunRow.claimed_until
    is_free = or_(until.is_(None), until <= now, until > now + CLAIM)
    is_rested = or_(ScheduleRunRow.retry_at.is_(None), ScheduleRunRow.retry_at <= now)
    is_rested = or_(is_rested, ScheduleRunRow.retry_at > now + timedelta(seconds=LONGEST_PAUSE_SECONDS))
    return (ScheduleRunRow.state == RunState.FIRING) & is_free & is_rested


def _change(connection: Connection, run: Run, **values: Any) -> None:
    mine = (ScheduleRunRow.id == run.id) & (ScheduleRunRow.epoch == run.epoch)
    is_open = mine & (ScheduleRunRow.state == RunState.FIRING)
    if not connection.execute(update(ScheduleRunRow).where(is_open).values(**values)).rowcount:
        raise Fenced
