"""What became of schedules' slots, read back out of SQL with what became of the jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, func, select

from worker.cron.records import Run
from worker.records import JobState
from worker.sql.database import reading
from worker.sql.tables import JobRow, ScheduleRow, ScheduleRunRow


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run, its schedule, and how many of its jobs are in which state."""

    schedule: str
    time_zone: str
    run: Run
    jobs: Mapping[JobState, int]


def read_history(
    database: Engine, name: str | None, limit: int, since: datetime | None = None
) -> tuple[RunDetail, ...]:
    """Return the latest runs, the latest first: of all schedules, or of those that have or had a name.

    `since` leaves out what was opened before. Raises ServiceUnavailable.
    """
    statement = select(ScheduleRow.name, ScheduleRow.time_zone, ScheduleRunRow.__table__)
    statement = statement.join(ScheduleRow, ScheduleRow.id == ScheduleRunRow.schedule_id)
    if name is not None:
        statement = statement.where(ScheduleRow.name == name)
    if since is not None:
        statement = statement.where(ScheduleRunRow.opened_at >= since)
    latest_first = (ScheduleRunRow.slot_at.desc(), ScheduleRunRow.opened_at.desc())
    with reading(database) as connection:
        rows = connection.execute(statement.order_by(*latest_first).limit(limit)).mappings().all()
        counts = _count_jobs(connection, [row["batch_id"] for row in rows if row["batch_id"] is not None])
    return tuple(
        RunDetail(
            row["name"],
            row["time_zone"],
            Run(**{column: value for column, value in row.items() if column not in ("name", "time_zone")}),
            counts.get(row["batch_id"], {}),
        )
        for row in rows
    )


def _count_jobs(connection: Connection, batch_ids: Sequence[str]) -> dict[str, dict[JobState, int]]:
    counts: dict[str, dict[JobState, int]] = {batch_id: {} for batch_id in batch_ids}
    statement = select(JobRow.batch_id, JobRow.state, func.count()).where(JobRow.batch_id.in_(batch_ids))
    for batch_id, state, number in connection.execute(statement.group_by(JobRow.batch_id, JobRow.state)):
        if batch_id is not None:
            counts[batch_id][state] = number
    return counts
