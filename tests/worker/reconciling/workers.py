"""Workers as the queue and SQL see them, and what the queue has."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import redis
from rq import Queue
from sqlalchemy import update

from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, Claim, Outcome
from worker.sql.database import open_database, writing
from worker.sql.fleet import WorkerRecord
from worker.sql.store import JobStore
from worker.sql.tables import WorkerRow


def waiting(connection: redis.Redis, queue: str = "default") -> list[str]:
    """Return the ids of the jobs that wait in a queue."""
    return Queue(queue, connection=connection).job_ids


def begin(connection: redis.Redis, store: JobStore, name: str, limit: int = 100) -> tuple[Claim, ...]:
    """Claim jobs and begin their attempts, as the worker `name` does."""
    machine = ("host", 1, "m", "cpu", "none", 16, 1, 1, "0", "0", "0")
    store.register_worker(WorkerRecord(name, *machine, started_at=datetime.now(UTC)))
    claims = JobQueue(connection, name, 60.0).claim(["default"], limit).claims
    begun = store.begin_attempts(claims, name)
    assert (begun.terminal, begun.stale) == ({}, frozenset())
    return claims


def fall_silent(sqlite_file: Path, name: str) -> None:
    """Let a worker be dead for an hour."""
    database = open_database(f"sqlite:///{sqlite_file}")
    with writing(database) as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(WorkerRow).where(WorkerRow.name == name).values(last_heartbeat_at=past))
    database.dispose()


def done(claim: Claim) -> Outcome:
    """Return the end of a job that went well."""
    return Outcome(claim, AttemptState.DONE, datetime.now(UTC), "yes", (1,), "stop", 1, 1, None, None, None)
