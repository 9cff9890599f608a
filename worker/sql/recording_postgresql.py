"""PostgreSQL through psycopg itself, for recording submitted jobs. `worker.sql.database` explains the choices."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.sql.driver_errors import driver_reason, is_missing_schema, is_refused

CONNECT_TIMEOUT_S = 5
DEAD_PEER_TIMEOUT_MS = 20_000
LOCK_TIMEOUT_MS = 5_000


class PostgresqlDatabase:
    """A PostgreSQL database; it is connected to on first use, and again when the connection broke.

    See `worker.sql.recording.DriverDatabase`.
    """

    placeholder = "%s"

    def __init__(self, url: str) -> None:
        """`url` is one that libpq takes: postgresql://... Raises ConfigurationError for a malformed one."""
        self._url = url
        try:
            parts = urlsplit(url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            raise ConfigurationError("database_url: cannot be parsed; give postgresql://user@host/name") from None
        user = f"{parts.username}@" if parts.username else ""
        query = parse_qs(parts.query)
        self._place = f"postgresql://{user}{parts.hostname or ''}{port}{parts.path or '/'}"
        self._secrets = (unquote(parts.password or ""), *query.get("password", ()))
        defaults: dict[str, Any] = {
            "application_name": "pagemill",
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": DEAD_PEER_TIMEOUT_MS,
            "options": f"-c lock_timeout={LOCK_TIMEOUT_MS}",
        }
        self._options = {name: value for name, value in defaults.items() if name not in query}
        self._connection: psycopg.Connection[Any] | None = None

    def write(self, statements: Sequence[tuple[str, Sequence[Sequence[Any]]]]) -> None:
        with self._errors():
            connection = self._opened()
            with connection.transaction(), connection.cursor() as cursor:
                for statement, rows in statements:
                    cursor.executemany(statement.encode(), rows)

    def time(self, moment: datetime) -> datetime:
        return moment

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, **self._options)
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            reason = driver_reason(error, self._secrets)
            if is_missing_schema(error):
                raise ConfigurationError(
                    f"the database at {self._place} lacks a table or column: {reason}; run `pagemill db upgrade`"
                ) from None
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                raise ConfigurationError(f"database_url: {reason}") from None
            if is_refused(error) or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                raise ServiceUnavailable(f"cannot use the database at {self._place}: {reason}") from None
            raise
