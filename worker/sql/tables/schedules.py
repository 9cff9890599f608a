"""Schedules, their runs, and which scheduler leads. `worker.cron.records` defines the values; every time is UTC."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from worker.cron.records import MissedPolicy, OverlapPolicy, RunKind, RunState, SkipReason
from worker.sql.tables.base import Base, text_enum

PRESENT = "removed_at IS NULL"  # the condition of an index; a query must say it in the same words
FIRING = "state = 'firing'"  # likewise


class ScheduleRow(Base):
    """What is submitted when. A schedule that was removed stays, for its history."""

    __tablename__ = "schedules"
    __table_args__ = (
        Index(
            "uq_schedules_name",
            "name",
            unique=True,
            sqlite_where=text(PRESENT),
            postgresql_where=text(PRESENT),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    expression: Mapped[str]
    time_zone: Mapped[str]
    action: Mapped[str]
    queue: Mapped[str]
    tenant: Mapped[str]
    missed: Mapped[MissedPolicy] = mapped_column(text_enum(MissedPolicy, "missed"))
    overlap: Mapped[OverlapPolicy] = mapped_column(text_enum(OverlapPolicy, "overlap"))
    grace_seconds: Mapped[float]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    paused_at: Mapped[datetime | None]
    removed_at: Mapped[datetime | None]
    next_slot_at: Mapped[datetime | None]


class ScheduleRunRow(Base):
    """What came of a slot: at most one run of each kind."""

    __tablename__ = "schedule_runs"
    __table_args__ = (
        UniqueConstraint("schedule_id", "kind", "slot_at"),
        Index("ix_schedule_runs_firing", "slot_at", sqlite_where=text(FIRING), postgresql_where=text(FIRING)),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # derived from schedule, kind and slot
    schedule_id: Mapped[str] = mapped_column(ForeignKey("schedules.id", ondelete="CASCADE"))
    kind: Mapped[RunKind] = mapped_column(text_enum(RunKind, "kind"))
    slot_at: Mapped[datetime]
    last_slot_at: Mapped[datetime]
    num_slots: Mapped[int]
    state: Mapped[RunState] = mapped_column(text_enum(RunState))
    skip_reason: Mapped[SkipReason | None] = mapped_column(text_enum(SkipReason, "skip_reason"))
    message: Mapped[str | None]
    batch_id: Mapped[str | None]  # no reference: the batch comes with its first job
    source_digest: Mapped[str | None]
    num_jobs: Mapped[int | None]
    num_submitted: Mapped[int]
    epoch: Mapped[int]
    num_failures: Mapped[int]
    retry_at: Mapped[datetime | None]
    claimed_by: Mapped[str | None]
    claimed_until: Mapped[datetime | None]
    opened_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class LeaderRow(Base):
    """Who leads, of those that do something of which there is to be one. `epoch` rises with each new holder."""

    __tablename__ = "leaders"

    duty: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int]
    expires_at: Mapped[datetime]
