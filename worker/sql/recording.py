"""Recording submitted jobs in SQL before Redis has them, through the database's own driver.

SQLAlchemy is not used here: importing it takes 0.2 s, which `pagemill submit` has not got. A test holds the rows to
those of `worker.sql.tables`.
"""

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from worker.errors import ConfigurationError
from worker.jobs import DEFAULT_TENANT
from worker.queue.submission import QueueRecord
from worker.settings_model import Settings
from worker.sql.recording_sqlite import SqliteDatabase

BATCH_COLUMNS = ("id", "size", "created_at")
JOB_COLUMNS = (
    *("id", "queue", "tenant", "model", "batch_id", "custom_id", "payload"),
    *("state", "epoch", "attempt_count", "enqueued_at", "deadline_at"),
)
INSERT_BATCHES = (
    f"INSERT INTO batches ({', '.join(BATCH_COLUMNS)}) VALUES ({{values}}) ON CONFLICT (id) DO UPDATE "
    "SET size = excluded.size WHERE batches.size IS NULL AND excluded.size IS NOT NULL"
)
INSERT_JOBS = f"INSERT INTO jobs ({', '.join(JOB_COLUMNS)}) VALUES ({{values}}) ON CONFLICT (id) DO NOTHING"


class DriverDatabase(Protocol):
    """A database behind its driver. Every method raises ServiceUnavailable for what a later try may cure and
    ConfigurationError for a database without our tables; no message holds a password."""

    placeholder: str  # of a value in a statement

    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        """Run each statement for each of its rows, all in one transaction."""

    def time(self, moment: datetime) -> object:
        """Return a UTC time as the driver takes it."""

    def close(self) -> None:
        """Close the connection."""


class SqlRecorder:
    """Writes jobs as queued. Safe to use from several threads, one after the other."""

    def __init__(self, database: DriverDatabase) -> None:
        self._database = database
        self._turn = threading.Lock()
        self._insert_batches = _statement(INSERT_BATCHES, database, len(BATCH_COLUMNS))
        self._insert_jobs = _statement(INSERT_JOBS, database, len(JOB_COLUMNS))

    def record(self, queue: str, records: Sequence[QueueRecord]) -> None:
        """Write jobs as queued, with their batches; those that are there stay as they are. All of them or none."""
        # In the order of ids, as all transactions that write several rows.
        batches = [self._batch_row(record) for record in records if "batch_id" in record.payload]
        jobs = [self._job_row(queue, record) for record in records]
        unique = {row[0]: row for row in reversed(batches)}  # the first of each
        statements = [(self._insert_batches, [unique[batch_id] for batch_id in sorted(unique)])] if unique else []
        with self._turn:
            self._database.write([*statements, (self._insert_jobs, sorted(jobs, key=lambda row: str(row[0])))])

    def _batch_row(self, record: QueueRecord) -> tuple[Any, ...]:
        payload = record.payload
        return payload["batch_id"], payload.get("batch_size"), self._database.time(record.enqueued_at)

    def _job_row(self, queue: str, record: QueueRecord) -> tuple[object, ...]:
        field, time = record.payload.get, self._database.time
        deadline = field("deadline")
        return (
            record.job_id,
            queue,
            field("tenant", DEFAULT_TENANT),
            field("model"),
            field("batch_id"),
            field("custom_id"),
            record.payload_json,
            "queued",
            0,
            0,
            time(record.enqueued_at),
            None if deadline is None else time(datetime.fromisoformat(deadline).astimezone(UTC)),
        )


@contextmanager
def opened_recorder(url: str) -> Iterator[SqlRecorder]:
    """Give a recorder on the database at `url`, which has our tables, and close its connection afterwards.

    Raises ConfigurationError for a URL that cannot be used or a database without tables, ServiceUnavailable for one
    that cannot be reached.
    """
    database = _open(url)
    try:
        yield SqlRecorder(database)
    finally:
        database.close()


def recorder_of(settings: Settings) -> AbstractContextManager[SqlRecorder]:
    """Give a recorder on the configured database. The default one in `data_dir` is created if it is not there."""
    ensure_default_database(settings)
    return opened_recorder(settings.sql_url())


def ensure_default_database(settings: Settings) -> None:
    """Create the default database in `data_dir`, if that is the configured one and is not there."""
    if settings.database_url is None and not SqliteDatabase(Path(settings.data_dir) / "pagemill.db").has_tables():
        # Alembic is slow to import, and needed here once in a database's life.
        importlib.import_module("worker.sql.schema").upgrade(settings.sql_url())


def _open(url: str) -> DriverDatabase:
    scheme, separator, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    if separator and kind == "sqlite":
        path = rest.partition("?")[0]
        if not path.startswith("/") or path in ("/", "/:memory:"):
            raise ConfigurationError("database_url: SQLite needs a file, as in sqlite:///file.db")
        return SqliteDatabase(Path(path.removeprefix("/")))
    if separator and kind in ("postgresql", "postgres"):
        # The driver takes a while to import as well: only where it is used.
        opened: Callable[[str], DriverDatabase] = importlib.import_module(
            "worker.sql.recording_postgresql"
        ).PostgresqlDatabase
        return opened(f"postgresql://{rest}")
    raise ConfigurationError("database_url: must begin with sqlite:/// or postgresql://")


def _statement(template: str, database: DriverDatabase, num_columns: int) -> str:
    return template.format(values=", ".join([database.placeholder] * num_columns))
