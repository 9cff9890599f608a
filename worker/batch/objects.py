"""A batch as OpenAI's Batch API shows it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from worker.batch.records import BatchState, BatchStatus, LineFault

HOUR_SECONDS = 3600
MAX_ERRORS = 100  # lines at fault that a batch's object tells of; its file of errors has all of them


def batch_object(
    status: BatchStatus,
    *,
    output_file_id: str | None = None,
    error_file_id: str | None = None,
    faults: Sequence[LineFault] = (),
) -> dict[str, Any]:
    """Return the `batch` object. `faults` are told of where the batch failed, the first `MAX_ERRORS`."""
    batch, counts = status.batch, status.counts
    moments = ("expires", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
    return {
        "id": batch.batch_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": _errors(status, faults[:MAX_ERRORS]),
        "input_file_id": batch.input_name,
        "completion_window": None if batch.window_seconds is None else _window(batch.window_seconds),
        "status": batch.state.value,
        "output_file_id": output_file_id,
        "error_file_id": error_file_id,
        "created_at": int(batch.created_at.timestamp()),
        **{f"{name}_at": _seconds(getattr(batch, f"{name}_at")) for name in moments},
        "request_counts": {"total": counts.total or 0, "completed": counts.completed, "failed": counts.failed},
        "metadata": dict(batch.labels) or None,
    }


def _errors(status: BatchStatus, faults: Sequence[LineFault]) -> dict[str, Any] | None:
    if status.batch.state is not BatchState.FAILED:
        return None
    told = [
        {"code": fault.code, "message": fault.message, "param": fault.param, "line": fault.line} for fault in faults
    ]
    reason = {"code": "invalid_file", "message": status.batch.failure, "param": None, "line": None}
    return {"object": "list", "data": told or [reason]}


def _window(seconds: int) -> str:
    """Return a window as OpenAI writes it: 24h."""
    return f"{seconds // HOUR_SECONDS}h" if seconds % HOUR_SECONDS == 0 else f"{seconds}s"


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
