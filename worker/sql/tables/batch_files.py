"""Batches that were made of a file of requests, as OpenAI's batches are, and the lines at fault in these files."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import Base


class BatchFileRow(Base):
    """A batch and its file. Its state follows from the times at which it got somewhere, and from its jobs' states."""

    __tablename__ = "batch_files"
    __table_args__ = (Index(None, "tenant", "created_at"),)

    batch_id: Mapped[str] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    run_key: Mapped[str | None] = mapped_column(unique=True)  # what an interrupted command finds its batch by
    tenant: Mapped[str]
    queue: Mapped[str]
    endpoint: Mapped[str | None]  # of all its requests; None before the first good one was read
    input_name: Mapped[str]  # a path, or a file's id
    output_name: Mapped[str | None]  # a path; None where nobody waits to write it
    num_requests: Mapped[int | None]  # lines, those at fault included; None before all were read
    num_faults: Mapped[int]  # of these lines
    num_completed: Mapped[int | None]  # None before its end
    num_failed: Mapped[int | None]  # likewise; lines at fault included
    window_seconds: Mapped[int | None]  # what its completion may take
    labels: Mapped[str]  # JSON: the names and values that its maker gave it
    failure: Mapped[str | None]  # why none of it was run
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    in_progress_at: Mapped[datetime | None]  # all its jobs were submitted
    finalizing_at: Mapped[datetime | None]  # all its jobs had ended
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]


class BatchFaultRow(Base):
    """A line that is no request, or one that cannot be served."""

    __tablename__ = "batch_faults"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch_files.batch_id", ondelete="CASCADE"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # from 1
    custom_id: Mapped[str | None]
    code: Mapped[str | None]
    message: Mapped[str]
    param: Mapped[str | None]
