"""SQLite through Python's own driver, for recording submitted jobs. `worker.sql.database` explains the choices."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.sql.driver_errors import driver_reason, is_missing_schema, is_sqlite_unavailable

BUSY_TIMEOUT_SECONDS = 5.0
TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"  # as SQLAlchemy stores times, which are UTC


class SqliteDatabase:
    """An SQLite file that is there; it is opened on first use. See `worker.sql.recording.DriverDatabase`."""

    placeholder = "?"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def has_tables(self) -> bool:
        """Tell whether the file is there and has our tables. Raises ServiceUnavailable."""
        if not self._path.exists():
            return False
        with self._errors():
            found = self._opened().execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        self.close()
        return found is not None

    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        with self._errors():
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    connection.executemany(statement, rows)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def time(self, moment: datetime) -> str:
        return moment.strftime(TIME_FORMAT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self._path.exists():
                raise ConfigurationError(f"the database at {self._place} is not there; run `pagemill db upgrade`")
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA foreign_keys=ON")
        return self._connection

    @property
    def _place(self) -> str:
        return f"sqlite:///{self._path}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            reason = driver_reason(error, ())
            if is_missing_schema(error):
                raise ConfigurationError(
                    f"the database at {self._place} lacks a table or column: {reason}; run `pagemill db upgrade`"
                ) from None
            if is_sqlite_unavailable(error):
                raise ServiceUnavailable(f"cannot use the database at {self._place}: {reason}") from None
            raise
