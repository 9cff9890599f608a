"""Runs of schedules that ended long ago, and schedules that were removed before and have none left."""

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, select

from worker.cron.records import RunState
from worker.records import JobState
from worker.sql.tables import JobRow, ScheduleRow, ScheduleRunRow

RUNS_PER_STATEMENT = 500


def count_old_runs(connection: Connection, before: datetime) -> int:
    """Count the runs that `delete_old_runs` would delete, in as many calls as it takes."""
    return connection.scalar(select(func.count()).select_from(ScheduleRunRow).where(_is_old(before))) or 0


def delete_old_runs(connection: Connection, before: datetime) -> int:
    """Delete some hundred runs whose slots were before `before` (UTC), and return how many.

    One whose jobs have not all ended stays: later slots of its schedule may have to wait for it.
    """
    ids = select(ScheduleRunRow.id).where(_is_old(before)).order_by(ScheduleRunRow.slot_at).limit(RUNS_PER_STATEMENT)
    chunk = connection.scalars(ids).all()
    connection.execute(delete(ScheduleRunRow).where(ScheduleRunRow.id.in_(chunk)))
    return len(chunk)


def delete_removed_schedules(connection: Connection, before: datetime) -> None:
    """Delete schedules that were removed before `before` (UTC) and have no runs any more."""
    has_runs = exists().where(ScheduleRunRow.schedule_id == ScheduleRow.id)
    connection.execute(delete(ScheduleRow).where(ScheduleRow.removed_at < before, ~has_runs))


def _is_old(before: datetime) -> ColumnElement[bool]:
    is_open = exists().where(
        JobRow.batch_id == ScheduleRunRow.batch_id, JobRow.state.in_((JobState.QUEUED, JobState.RUNNING))
    )
    has_ended = and_(ScheduleRunRow.state != RunState.FIRING, ScheduleRunRow.last_slot_at < before)
    return and_(has_ended, ~is_open)
