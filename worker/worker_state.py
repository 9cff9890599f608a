"""How workers are, by their rows in SQL and the settings of whoever asks."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from worker.settings_model import Settings
from worker.sql.fleet import WorkerDetail

SILENT_BEATS = 3  # heartbeats that a running worker may miss before it is shown as silent
WORKER_HOURS = 24  # how long a worker that stopped or fell silent is shown


class WorkerState(StrEnum):
    """How a worker is."""

    RUNNING = "running"
    STUCK = "stuck"  # the process beats, its engine does not answer
    SILENT = "silent"
    STOPPED = "stopped"


def worker_state(worker: WorkerDetail, now: datetime, settings: Settings) -> WorkerState:
    """Return how a worker was at `now`, UTC."""
    if worker.stopped_at is not None:
        return WorkerState.STOPPED
    if now - worker.last_heartbeat_at > timedelta(seconds=SILENT_BEATS * settings.beat_seconds):
        return WorkerState.SILENT
    answered_at = worker.engine_answered_at or worker.record.started_at
    if worker.last_heartbeat_at - answered_at > timedelta(seconds=settings.engine_timeout_seconds):
        return WorkerState.STUCK
    return WorkerState.RUNNING


def running_workers(workers: Iterable[WorkerDetail], now: datetime, settings: Settings) -> list[WorkerDetail]:
    """Return those of the workers that run at `now`, UTC."""
    return [worker for worker in workers if worker_state(worker, now, settings) is WorkerState.RUNNING]
