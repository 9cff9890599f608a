"""The rows of a SQL query as a source of documents. What writes is refused, whoever connects: three times over.

A query has to begin as one that reads, be a single statement, and runs in a transaction that the database itself holds
to reading (PostgreSQL: READ ONLY; SQLite: the file is opened for reading, with query_only on).
"""

import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from sqlalchemy import URL

from worker.errors import PagemillError, ServiceUnavailable
from worker.rag.folder import DEFAULT_MAX_FILE_BYTES
from worker.rag.reading import Document, Format, UnreadableDocument, checked_text
from worker.rag.sources import SourceItem, SourceKind, hash_of, unreadable
from worker.sql.database import CONNECT_TIMEOUT_S, parse_database_url, place_of
from worker.sql.driver_errors import driver_reason

ROWS_AT_ONCE = 100
MAX_ID_CHARACTERS = 512
SECRET_OPTIONS = ("password", "sslpassword")  # of a URL's query

_COMMENT = re.compile(r"\s+|--[^\n]*(?:\n|$)|/\*.*?\*/", re.DOTALL)
_READING_WORDS = re.compile(r"(?:SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QuerySource:
    """Rows of (id, text) or (id, text, title)."""

    query: str
    url: str
    max_row_bytes: int = DEFAULT_MAX_FILE_BYTES

    @property
    def kind(self) -> SourceKind:
        return SourceKind.SQL

    @property
    def place(self) -> str:
        return self.query

    @property
    def options(self) -> str:
        return ""

    @property
    def remembered(self) -> dict[str, Any]:
        return {"sql_url": without_secrets(self.url), "max_file_bytes": self.max_row_bytes}

    def items(self) -> Iterator[SourceItem]:
        """Yield a document for each row, in the query's order.

        Raises PagemillError for a query that is refused or has not these columns, or whose ids are not unique, and
        ServiceUnavailable for a database that cannot be reached.
        """
        statement = checked_query(self.query)
        url = parse_database_url(self.url)
        seen: set[str] = set()
        with _reading(url, statement) as rows:
            for number, row in enumerate(rows, start=1):
                source = _id_of(row[0], number)
                if source in seen:
                    raise PagemillError(f"sql: row {number}: the id {source!r} was there before; ids must be unique")
                seen.add(source)
                yield self._item(source, *row[1:])

    def skipped(self) -> tuple[str, ...]:
        """Return nothing: every row is a document."""
        return ()

    def _item(self, source: str, text: object, title: object = None) -> SourceItem:
        if not isinstance(text, str):
            kind = "NULL" if text is None else f"of the type {type(text).__name__}, not text"
            return unreadable(source, Format.ROW, f"its text is {kind}")
        size = len(text.encode("utf-8", "replace"))
        if size > self.max_row_bytes:
            reason = f"has {size} bytes; at most {self.max_row_bytes} are read (--max-file-size raises that)"
            return unreadable(source, Format.ROW, reason)
        named = " ".join(str(title).split())[:MAX_ID_CHARACTERS] if title is not None else ""

        def read() -> Document:
            return Document(named or source, checked_text(text))

        return SourceItem(source, Format.ROW, hash_of(f"{named}\n{text}".encode("utf-8", "replace")), read)


def without_secrets(url: str) -> str:
    """Return a database's URL without its passwords: libpq finds them in ~/.pgpass or PGPASSWORD. Raises
    ConfigurationError."""
    parsed = parse_database_url(url)
    bare = parsed._replace(password=None).difference_update_query(SECRET_OPTIONS)
    if bare.get_backend_name() == "sqlite":
        bare = bare.set(database=str(Path(bare.database or "").absolute()))
    return bare.set(drivername=bare.get_backend_name()).render_as_string(hide_password=False)


def checked_query(query: str) -> str:
    """Return a query without its last semicolon. Raises PagemillError for anything but one statement that reads."""
    start = 0
    while match := _COMMENT.match(query, start):
        start = match.end()
    statement = query[start:].rstrip().rstrip(";").rstrip()
    if not _READING_WORDS.match(statement):
        first = statement.split(maxsplit=1)[0][:40] if statement else "nothing"
        raise PagemillError(f"sql: begins with {first}; only a query that reads is run: SELECT id, text FROM ...")
    if ";" in statement:
        raise PagemillError("sql: holds a semicolon; give one statement only, and chr(59) for one within a text")
    return statement


def _id_of(value: object, number: int) -> str:
    source = "" if value is None else str(value)
    try:
        checked_text(source)
    except UnreadableDocument as error:
        raise PagemillError(f"sql: row {number}: its id {error}") from None
    if len(source) > MAX_ID_CHARACTERS:
        raise PagemillError(f"sql: row {number}: its id has {len(source)} characters; at most {MAX_ID_CHARACTERS}")
    return source


def _check_columns(columns: list[str]) -> None:
    if len(columns) not in (2, 3):
        raise PagemillError(
            f"sql: the query has {len(columns)} columns ({', '.join(columns)[:100]}); id, text and, at most, title"
        )


@contextmanager
def _reading(url: URL, statement: str) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Give the rows of a query, read in a transaction that cannot write."""
    read = _read_sqlite if url.get_backend_name() == "sqlite" else _read_postgresql
    with closing(read(url, statement)) as rows:
        yield rows


def _read_sqlite(url: URL, statement: str) -> Generator[tuple[Any, ...]]:
    path = Path(url.database or "").absolute()
    if not path.is_file():
        raise PagemillError(f"sql_url: there is no file {path}")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA query_only=ON")
            cursor = connection.execute(statement)
            _check_columns([column[0] for column in cursor.description or ()])
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield from rows
    except sqlite3.Error as error:
        raise _refused(url, error) from None


def _read_postgresql(url: URL, statement: str) -> Generator[tuple[Any, ...]]:
    libpq_url = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(libpq_url, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            connection.read_only = True
            with connection.cursor("pagemill_rows") as cursor:
                cursor.itersize = ROWS_AT_ONCE
                cursor.execute(statement.encode())
                _check_columns([column.name for column in cursor.description or ()])
                yield from cursor
    except psycopg.OperationalError as error:
        raise ServiceUnavailable(f"cannot read from {place_of(url)}: {_reason(url, error)}{_hint(url)}") from None
    except psycopg.Error as error:
        raise _refused(url, error) from None


def _refused(url: URL, error: Exception) -> PagemillError:
    return PagemillError(f"sql: {place_of(url)} refuses the query: {_reason(url, error)}")


def _reason(url: URL, error: Exception) -> str:
    return driver_reason(error, (str(url.password) if url.password else None, url.query.get("password")))


def _hint(url: URL) -> str:
    """Return where a password comes from that the URL does not have."""
    if url.password or url.query.get("password"):
        return ""
    return " (no password is in the URL or kept with a collection: libpq takes it from ~/.pgpass or PGPASSWORD)"
