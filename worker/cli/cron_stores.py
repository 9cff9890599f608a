"""What the `cron` commands work with."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import redis
from sqlalchemy import Engine

from worker.cli.output import message
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_database
from worker.cron.firing import Clock, redis_clock
from worker.cron.leader import current_leader
from worker.cron.schedule_store import ScheduleStore
from worker.settings_model import Settings
from worker.sql.recording import ensure_default_database
from worker.sql.store import JobStore
from worker.worker_state import SILENT_BEATS


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The schedules, and the clock that all schedulers share."""

    settings: Settings
    database: Engine
    connection: redis.Redis
    schedules: ScheduleStore
    clock: Clock


@contextmanager
def opened_scheduling(settings: Settings) -> Iterator[Scheduling]:
    """Give the database with the queue's clock, for commands that change schedules."""
    ensure_default_database(settings)
    with opened_database(settings) as database, opened_queue(settings) as connection:
        yield Scheduling(settings, database, connection, ScheduleStore(database), redis_clock(connection))


def scheduler_name() -> str:
    """Return a name that no other scheduler has."""
    return f"cron-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"


def warn_without_scheduler(settings: Settings, database: Engine) -> None:
    """Say so where nobody is there to fire schedules, as far as SQL knows."""
    now = datetime.now(UTC)
    leader = current_leader(database)
    if leader is not None and leader.is_valid(now):
        return
    silent_since = now - timedelta(seconds=SILENT_BEATS * settings.beat_seconds)
    workers = JobStore(database).workers()
    if not any(worker.stopped_at is None and worker.last_heartbeat_at >= silent_since for worker in workers):
        message("nobody fires schedules now: they fire while a worker runs, or `pagemill cron scheduler`")
