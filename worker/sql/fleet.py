"""The workers in SQL: who runs on what, when each was last seen and what it has done."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from worker.sql.database import upserting
from worker.sql.tables import WorkerHourRow, WorkerRow
from worker.sql.worker_hours import AccountEntry, WorkerHour, delete_hours, write_hours


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What a worker says of itself when it starts. `started_at` is UTC, `block_size` in tokens."""

    name: str
    hostname: str
    pid: int
    model: str
    device: str
    dtype: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    pagemill_version: str
    torch_version: str
    transformers_version: str
    started_at: datetime
    price_per_engine_hour: float | None = None  # None where nobody said what an hour costs
    price_currency: str | None = None
    kv_dtype: str | None = None  # None, as below, of a worker of an older version
    kv_host_blocks: int | None = None
    longest_sequence: int | None = None  # tokens


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """What a worker has done since it started."""

    jobs_done: int = 0
    jobs_failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prefix_hit_tokens: int = 0
    kv_blocks_out: int | None = None  # copied to the host's memory; None before the first heartbeat
    kv_blocks_back: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerDetail:
    """A worker as SQL last saw it. Times are UTC; `stopped_at` is None for one that runs, or that died unheard."""

    record: WorkerRecord
    counters: WorkerCounters
    last_heartbeat_at: datetime
    engine_answered_at: datetime | None  # None before its first heartbeat
    stopped_at: datetime | None
    busy_share: float | None = None  # of its time so far, that requests had; None before its first heartbeat


def add_worker(connection: Connection, record: WorkerRecord) -> None:
    """Write the worker's row; one of the same name is started anew, its counters and its account at zero."""
    row = {**asdict(record), **asdict(WorkerCounters()), "last_heartbeat_at": record.started_at}
    row |= {"engine_answered_at": None, "stopped_at": None}
    statement = upserting(connection, WorkerRow).values(row)
    connection.execute(statement.on_conflict_do_update(index_elements=[WorkerRow.name], set_=row))
    delete_hours(connection, record.name)


def beat_worker(
    connection: Connection,
    name: str,
    counters: WorkerCounters,
    engine_age: timedelta,
    hours: tuple[WorkerHour, ...],
    now: datetime,
) -> None:
    """Write that the worker was alive at `now`, and its engine `engine_age` before, with its counters and its account.
    An unknown name changes nothing."""
    row = {**asdict(counters), "last_heartbeat_at": now, "engine_answered_at": now - engine_age}
    connection.execute(update(WorkerRow).where(WorkerRow.name == name).values(row))
    write_hours(connection, AccountEntry(name, hours))


def end_worker(connection: Connection, name: str, now: datetime) -> None:
    """Write that the worker stopped at `now`; the first such time stays."""
    running = (WorkerRow.name == name) & WorkerRow.stopped_at.is_(None)
    connection.execute(update(WorkerRow).where(running).values(stopped_at=now))


def find_workers(connection: Connection) -> tuple[WorkerDetail, ...]:
    """Return every worker, the latest to start first."""
    busy_share = func.sum(WorkerHourRow.engine_seconds) / func.sum(WorkerHourRow.wall_seconds)
    shares = select(WorkerHourRow.worker_name, busy_share.label("busy_share")).group_by(WorkerHourRow.worker_name)
    by_name = shares.subquery()
    statement = (
        select(WorkerRow.__table__, by_name.c.busy_share)
        .outerjoin(by_name, by_name.c.worker_name == WorkerRow.name)
        .order_by(WorkerRow.started_at.desc(), WorkerRow.name)
    )
    return tuple(_worker_detail(row, row["busy_share"]) for row in connection.execute(statement).mappings())


def find_records(connection: Connection, names: Iterable[str]) -> tuple[WorkerRecord, ...]:
    """Return what these workers said of themselves, in the order of their names; unknown ones are left out."""
    statement = select(WorkerRow.__table__).where(WorkerRow.name.in_(list(names))).order_by(WorkerRow.name)
    return tuple(_worker_detail(row, None).record for row in connection.execute(statement).mappings())


def _worker_detail(row: RowMapping, busy_share: float | None) -> WorkerDetail:
    def fields(kind: type[WorkerRecord] | type[WorkerCounters]) -> dict[str, Any]:
        return {name: row[name] for name in kind.__dataclass_fields__}

    return WorkerDetail(
        record=WorkerRecord(**fields(WorkerRecord)),
        counters=WorkerCounters(**fields(WorkerCounters)),
        last_heartbeat_at=row["last_heartbeat_at"],
        engine_answered_at=row["engine_answered_at"],
        stopped_at=row["stopped_at"],
        busy_share=busy_share,
    )
