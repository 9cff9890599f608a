"""What a batch made of a file is: frozen, plain, no I/O. Times are UTC."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import uuid4

from worker.openai_api.fields import Endpoint

LINE_DIGITS = 9  # of a job's id, so that jobs in the order of their ids are in the order of their lines
DEFAULT_WINDOW = timedelta(hours=24)


class BatchState(StrEnum):
    """OpenAI's words for how far a batch is. The last four are its ends."""

    VALIDATING = "validating"  # its lines are being read and submitted
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"  # all have ended; the command that writes its output has not written all of it
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"  # nothing of it was run
    EXPIRED = "expired"  # some did not end in time
    CANCELLED = "cancelled"


ENDED_STATES = frozenset({BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED})


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """How many requests of a batch are where. `total` is None before all lines were read."""

    total: int | None
    completed: int
    failed: int  # lines at fault, and what expired or was cancelled, included
    expired: int = 0  # of those that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFile:
    """A batch made of a file, as SQL has it; see `worker.sql.tables.batch_files`."""

    batch_id: str
    run_key: str | None = None
    tenant: str
    queue: str
    endpoint: Endpoint | None = None
    input_name: str
    output_name: str | None = None
    num_requests: int | None = None
    num_faults: int = 0
    num_completed: int | None = None
    num_failed: int | None = None
    window_seconds: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None
    created_at: datetime
    expires_at: datetime | None = None
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    expired_at: datetime | None = None
    cancelling_at: datetime | None = None
    cancelled_at: datetime | None = None

    @property
    def end(self) -> BatchState | None:
        """How it ended; None as long as it has not."""
        ends = {
            BatchState.FAILED: self.failed_at,
            BatchState.CANCELLED: self.cancelled_at,
            BatchState.EXPIRED: self.expired_at,
            BatchState.COMPLETED: self.completed_at,
        }
        return next((state for state, at in ends.items() if at is not None), None)

    @property
    def state(self) -> BatchState:
        if self.end is not None:
            return self.end
        if self.cancelling_at is not None:
            return BatchState.CANCELLING
        if self.in_progress_at is None:
            return BatchState.VALIDATING
        return BatchState.IN_PROGRESS if self.finalizing_at is None else BatchState.FINALIZING


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """A batch and its requests, as they were at one moment."""

    batch: BatchFile
    counts: RequestCounts


@dataclass(frozen=True, slots=True)
class LineFault:
    """A line that is no request, or one that cannot be served. Lines count from 1."""

    line: int
    custom_id: str | None
    message: str
    code: str | None = None
    param: str | None = None


def new_batch_id() -> str:
    return f"batch_{uuid4().hex[:24]}"


def job_id_of(batch_id: str, line: int) -> str:
    """Return the id of the job that a line becomes; they rise with the lines."""
    return f"{batch_id}-{line:0{LINE_DIGITS}d}"


def line_of(job_id: str) -> int:
    """Return the line that a job was made of."""
    return int(job_id.rpartition("-")[2])
