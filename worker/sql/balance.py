"""Does the ledger add up? Each worker's own account beside what its attempts were charged."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from worker.sql.tables import AttemptRow, WorkerHourRow, WorkerRow
from worker.sql.worker_hours import WorkerHour

SUMS = tuple(name for name in WorkerHour.__dataclass_fields__ if name != "hour")


@dataclass(frozen=True, slots=True)
class WorkerBalance:
    """One worker's time since it began, up to its last heartbeat. Costs are in its currency; None without a price.

    `wall_seconds` is the sum of the engine's, idle, loading and overhead seconds. The engine's are the attempts' and
    `unattributed_engine_seconds`: of attempts that run now, or whose worker died.
    """

    worker: str
    model: str
    started_at: datetime  # UTC: its model was loaded
    last_heartbeat_at: datetime
    wall_seconds: float
    engine_seconds: float
    wasted_engine_seconds: float
    idle_seconds: float
    loading_seconds: float
    overhead_seconds: float
    attempts: int  # that are charged
    attempt_engine_seconds: float
    unattributed_engine_seconds: float
    num_blocks: int
    kv_block_seconds_held: float
    kv_block_seconds_cached: float
    kv_block_seconds_free: float
    attempt_kv_block_seconds: float
    computed_tokens: int
    recomputed_tokens: int
    price_per_engine_hour: float | None
    currency: str | None
    cost: float | None  # of the wall
    attempt_cost: float | None

    @property
    def unexplained_share(self) -> float:
        """The part of the wall that neither an attempt nor the worker's own account explains."""
        explained = self.attempt_engine_seconds + self.idle_seconds + self.loading_seconds + self.overhead_seconds
        return 1.0 - explained / self.wall_seconds if self.wall_seconds else 0.0


def find_balances(connection: Connection, since: datetime | None) -> tuple[WorkerBalance, ...]:
    """Return the balance of every worker that was heard of at or after `since` (UTC), the latest to start first; of
    those that keep an account."""
    accounts = select(WorkerHourRow.worker_name, *(func.sum(getattr(WorkerHourRow, name)).label(name) for name in SUMS))
    account = accounts.group_by(WorkerHourRow.worker_name).subquery()
    columns = ("name", "model", "started_at", "last_heartbeat_at", "num_blocks", "price_per_engine_hour")
    statement = (
        select(*(getattr(WorkerRow, name) for name in columns), WorkerRow.price_currency, *account.c)
        .join_from(WorkerRow, account, account.c.worker_name == WorkerRow.name)
        .order_by(WorkerRow.started_at.desc(), WorkerRow.name)
    )
    if since is not None:
        statement = statement.where(WorkerRow.last_heartbeat_at >= since)
    rows = connection.execute(statement).mappings().all()
    charged = _charged(connection, [row["name"] for row in rows])
    return tuple(_balance(row, charged.get(row["name"])) for row in rows)


def _charged(connection: Connection, names: Sequence[str]) -> dict[str, RowMapping]:
    """Return what the attempts of each of these workers were charged."""
    statement = (
        select(
            AttemptRow.worker_name,
            func.count().label("attempts"),
            func.sum(AttemptRow.engine_seconds).label("engine_seconds"),
            func.sum(AttemptRow.kv_block_seconds_share).label("kv_block_seconds"),
        )
        .where(AttemptRow.worker_name.in_(names), AttemptRow.engine_seconds.is_not(None))
        .group_by(AttemptRow.worker_name)
    )
    return {row["worker_name"]: row for row in connection.execute(statement).mappings()}


def _balance(row: RowMapping, charged: RowMapping | None) -> WorkerBalance:
    engine_seconds = 0.0 if charged is None else charged["engine_seconds"]
    price = row["price_per_engine_hour"]
    sums: dict[str, Any] = {name: row[name] for name in SUMS}
    sums |= {name: int(row[name]) for name in ("computed_tokens", "recomputed_tokens")}  # PostgreSQL's SUM: a Decimal
    return WorkerBalance(
        worker=row["name"],
        model=row["model"],
        started_at=row["started_at"],
        last_heartbeat_at=row["last_heartbeat_at"],
        **sums,
        attempts=0 if charged is None else charged["attempts"],
        attempt_engine_seconds=engine_seconds,
        unattributed_engine_seconds=row["engine_seconds"] - engine_seconds,
        num_blocks=row["num_blocks"],
        attempt_kv_block_seconds=0.0 if charged is None else charged["kv_block_seconds"],
        price_per_engine_hour=price,
        currency=row["price_currency"],
        cost=None if price is None else row["wall_seconds"] / 3600 * price,
        attempt_cost=None if price is None else engine_seconds / 3600 * price,
    )
