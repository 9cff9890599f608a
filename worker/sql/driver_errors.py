"""What the databases' drivers mean by their exceptions, without SQLAlchemy: shared by all that open a database."""

import sqlite3
from collections.abc import Iterable
from urllib.parse import quote

_SQLITE_NO_SCHEMA = ("no such table", "no such column", "has no column named")
_POSTGRESQL_NO_SCHEMA = {"42P01", "42703"}  # undefined_table, undefined_column
_POSTGRESQL_REFUSED = {
    "25006",  # read_only_sql_transaction: a standby, or a fail-over under way
    "42501",  # insufficient_privilege: the user lacks a grant
}


def is_missing_schema(cause: BaseException | None) -> bool:
    """Tell whether a statement named a table or column that the database has not got."""
    if isinstance(cause, sqlite3.Error):
        return any(sign in str(cause) for sign in _SQLITE_NO_SCHEMA)
    return getattr(cause, "sqlstate", None) in _POSTGRESQL_NO_SCHEMA


def is_sqlite_unavailable(cause: sqlite3.Error) -> bool:
    """Tell whether it is the file, the disk or a lock: a later try may succeed."""
    # SQLITE_ERROR is our own faulty SQL; every other operational code is the file, the disk or a lock.
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    is_operational = isinstance(cause, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
    return is_operational or code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def is_refused(cause: BaseException | None) -> bool:
    """Tell whether a PostgreSQL server takes a statement from nobody at present, or not from this user: it is no fault
    of the statement."""
    return getattr(cause, "sqlstate", None) in _POSTGRESQL_REFUSED


def driver_reason(cause: BaseException | None, secrets: Iterable[object]) -> str:
    """Return the driver's message as a short line, each of the `secrets` that are texts blotted out."""
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    reason = lines[0].removeprefix("connection failed: ").removeprefix("connection is bad: ")
    if reason.startswith("connection to server") and " failed: " in reason:
        reason = reason.rpartition(" failed: ")[2]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            reason = reason.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return reason.removeprefix("FATAL:").strip().rstrip(".")
