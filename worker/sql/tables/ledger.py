"""Where the workers' time went, hour by hour: the side of the ledger that no attempt is charged with is here too.

Seconds are the worker's own; docs/ledger.md says what is counted where.
"""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import Base


class WorkerHourRow(Base):
    """One worker's account of one hour (UTC), complete as of its last heartbeat in it.

    `wall_seconds` is the sum of the engine's, idle, loading and overhead seconds. The three `kv_block_seconds_` add up
    to the worker's `num_blocks` times the part of the wall for which it had its KV cache.
    """

    __tablename__ = "worker_hours"
    __table_args__ = (Index(None, "hour"),)

    worker_name: Mapped[str] = mapped_column(ForeignKey("workers.name", ondelete="CASCADE"), primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)  # its start
    wall_seconds: Mapped[float]  # that the worker lived in this hour
    engine_seconds: Mapped[float]  # charged to requests
    wasted_engine_seconds: Mapped[float]  # of those: for tokens computed before, and for steps that failed
    idle_seconds: Mapped[float]  # the engine had nothing to do
    loading_seconds: Mapped[float]  # before the engine's first step could come
    overhead_seconds: Mapped[float]  # the rest: between work and idleness, and while stopping
    kv_block_seconds_held: Mapped[float]  # blocks that requests held; one that many share counts once
    kv_block_seconds_cached: Mapped[float]  # blocks that nobody held, kept for the prefix cache
    kv_block_seconds_free: Mapped[float]
    computed_tokens: Mapped[int]  # prompt and output tokens run through the model
    recomputed_tokens: Mapped[int]  # of those: computed before, and lost
