"""Opening the database, transactions on it, and its failures as one line each.

What SQLite and PostgreSQL do differently is settled here: who may write when, how long a lock is waited for, what
survives a power cut.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from worker.errors import ConfigurationError, ServiceUnavailable
from worker.sql.driver_errors import driver_reason, is_missing_schema, is_refused, is_sqlite_unavailable
from worker.sql.tables import Base

DEFAULT_BUSY_TIMEOUT_MS = 5_000
BUSY_PAUSE_SECONDS = 0.005  # between two tries of what SQLite does not wait for itself
CONNECT_TIMEOUT_S = 5
DEAD_PEER_TIMEOUT_MS = 20_000  # unacknowledged TCP data older than this ends a PostgreSQL connection

SQLITE_DRIVERS = {"sqlite", "sqlite+pysqlite"}
POSTGRESQL_DRIVERS = {"postgresql", "postgres", "postgresql+psycopg"}

_READING = "pagemill_reading"  # execution option of a transaction that takes no write lock


def parse_database_url(url: str) -> URL:
    """Return the URL with its driver settled. Raises ConfigurationError, which never repeats a password."""
    example = "sqlite:///file.db or postgresql://user@host/name"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"database_url: cannot be parsed; give one like {example}") from None
    if parsed.drivername in SQLITE_DRIVERS:
        if parsed.database in (None, "", ":memory:"):
            raise ConfigurationError("database_url: SQLite needs a file, as in sqlite:///file.db")
        return parsed.set(drivername="sqlite+pysqlite")
    if parsed.drivername in POSTGRESQL_DRIVERS:
        return parsed.set(drivername="postgresql+psycopg")
    raise ConfigurationError(f"database_url: {parsed.drivername!r} is not supported; give one like {example}")


def place_of(url: URL) -> str:
    """Return where the database is, for a message: no password, no query string, no driver."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    user = f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return f"postgresql://{user}{url.host or ''}{port}/{url.database or ''}"


def open_database(url: str, *, busy_timeout_ms: int = DEFAULT_BUSY_TIMEOUT_MS) -> Engine:
    """Return an engine for `url`; it connects on first use.

    `busy_timeout_ms` is how long a statement waits for another's lock before ServiceUnavailable. An SQLite file is made
    (0600, in a parent folder of 0700 where there is none). Raises ConfigurationError for a URL that cannot be used and
    ServiceUnavailable when the file cannot be made.
    """
    parsed = parse_database_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _open_sqlite(parsed, busy_timeout_ms)
    return _open_postgresql(parsed, busy_timeout_ms)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Run one transaction that may write; it commits when the block ends and rolls back when it raises.

    On SQLite it holds the write lock from its start: a deferred upgrade would fail at once whatever the time-out.
    Raises ServiceUnavailable for anything that a later try may cure, ConfigurationError when tables are missing.
    """
    with database_errors(engine.url), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Run one transaction that only reads, all of it from one snapshot. It neither waits for a writer nor holds one up.

    Raises as `writing` does.
    """
    if engine.dialect.name == "sqlite":
        reader = engine.execution_options(**{_READING: True})
    else:
        reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    with database_errors(engine.url), reader.begin() as connection:
        yield connection


def upserting(connection: Connection, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return an INSERT into `table` in the connection's dialect, which can say ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


@contextmanager
def database_errors(url: URL) -> Iterator[None]:
    """Turn a driver's failure to connect, lock or write into ServiceUnavailable, and missing tables into
    ConfigurationError: one line each, without a password. Other errors (a broken constraint, say) pass unchanged.
    """
    try:
        yield
    except PoolTimeoutError:
        raise ServiceUnavailable(f"the database at {place_of(url)} has no connection free") from None
    except DBAPIError as error:
        cause = error.orig
        if is_missing_schema(cause):
            raise ConfigurationError(
                f"the database at {place_of(url)} lacks a table or column: {_reason(cause, url)}; "
                "run `pagemill db upgrade`"
            ) from None
        if _is_unknown_to_libpq(error):
            raise ConfigurationError(f"database_url: {_reason(cause, url)}") from None
        if _is_unavailable(error):
            raise ServiceUnavailable(f"cannot use the database at {place_of(url)}: {_reason(cause, url)}") from None
        raise


def _open_sqlite(url: URL, busy_timeout_ms: int) -> Engine:
    path = Path(url.database or "")
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ServiceUnavailable(f"cannot use the database at {place_of(url)}: {error.strerror}") from None
    # isolation_level None leaves BEGIN to us: Python's driver would begin late, and never with IMMEDIATE.
    arguments = {"isolation_level": None, "timeout": busy_timeout_ms / 1000}
    engine = create_engine(url, connect_args=arguments, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: object) -> None:
        mode = _switch_to_wal(connection, busy_timeout_ms)
        if mode != "wal":
            connection.close()
            raise ConfigurationError(
                f"database_url: the file system of {place_of(url)} cannot hold SQLite's write-ahead log "
                f"(journal mode {mode}); use a local disk or PostgreSQL"
            )
        connection.execute("PRAGMA synchronous=FULL")  # NORMAL may lose an acknowledged result with the power
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        is_reading = connection.get_execution_options().get(_READING, False)
        connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")

    return engine


def _switch_to_wal(connection: sqlite3.Connection, busy_timeout_ms: int) -> str:
    """Return the journal mode after asking for the write-ahead log.

    The first connections to a new file race for the switch, and SQLite then says BUSY at once, whatever its time-out.
    """
    deadline = time.monotonic() + busy_timeout_ms / 1000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(BUSY_PAUSE_SECONDS)
        else:
            return str(mode)


def _open_postgresql(url: URL, busy_timeout_ms: int) -> Engine:
    defaults: dict[str, Any] = {
        "application_name": "pagemill",
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": DEAD_PEER_TIMEOUT_MS,
        "options": f"-c lock_timeout={busy_timeout_ms}",
    }
    arguments = {name: value for name, value in defaults.items() if name not in url.query}
    return create_engine(url, connect_args=arguments, pool_pre_ping=True, hide_parameters=True)


def _is_unknown_to_libpq(error: DBAPIError) -> bool:
    """Tell whether the URL has an option, or a value of one, that was refused before any server was asked."""
    return isinstance(error, ProgrammingError) and getattr(error.orig, "sqlstate", "") is None


def _is_unavailable(error: DBAPIError) -> bool:
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return is_sqlite_unavailable(cause)
    return is_refused(cause) or error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def _reason(cause: BaseException | None, url: URL) -> str:
    """Return the driver's message as a short line without the password."""
    return driver_reason(cause, (url.password, url.query.get("password")))
