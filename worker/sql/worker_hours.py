"""Where workers' time went, hour by hour. What the figures mean is `worker.sql.tables.WorkerHourRow`'s to say."""

from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, select

from worker.sql.database import upserting
from worker.sql.tables import WorkerHourRow, WorkerRow


@dataclass(frozen=True, slots=True)
class WorkerHour:
    """One worker's account of one hour so far. `hour` is the hour's start, UTC."""

    hour: datetime
    wall_seconds: float
    engine_seconds: float
    wasted_engine_seconds: float
    idle_seconds: float
    loading_seconds: float
    overhead_seconds: float
    kv_block_seconds_held: float
    kv_block_seconds_cached: float
    kv_block_seconds_free: float
    computed_tokens: int
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """What a worker has to write of its account: the hours that changed, in the order of time."""

    worker_name: str
    hours: tuple[WorkerHour, ...]


def write_hours(connection: Connection, entry: AccountEntry) -> None:
    """Write a worker's account of these hours in the place of what it wrote of them before, unless that was later: a
    worker's threads may overtake each other. An unknown name changes nothing."""
    known = select(WorkerRow.name).where(WorkerRow.name == entry.worker_name)
    if not entry.hours or connection.scalar(known) is None:
        return
    statement = upserting(connection, WorkerHourRow)
    figures = [name for name in WorkerHour.__dataclass_fields__ if name != "hour"]
    statement = statement.on_conflict_do_update(
        index_elements=[WorkerHourRow.worker_name, WorkerHourRow.hour],
        set_={name: statement.excluded[name] for name in figures},
        where=WorkerHourRow.wall_seconds <= statement.excluded.wall_seconds,
    )
    connection.execute(statement, [{"worker_name": entry.worker_name, **asdict(hour)} for hour in entry.hours])


def delete_hours(connection: Connection, worker_name: str) -> None:
    """Delete a worker's account."""
    connection.execute(delete(WorkerHourRow).where(WorkerHourRow.worker_name == worker_name))


def find_hours(connection: Connection, worker_name: str) -> tuple[WorkerHour, ...]:
    """Return a worker's account, in the order of time."""
    columns = [getattr(WorkerHourRow, name) for name in WorkerHour.__dataclass_fields__]
    statement = select(*columns).where(WorkerHourRow.worker_name == worker_name).order_by(WorkerHourRow.hour)
    return tuple(WorkerHour(**row) for row in connection.execute(statement).mappings())
