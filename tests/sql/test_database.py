"""Opening databases: URLs, files, locks, and failures as one line without a password."""

import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from tests.sql.builders import claim_of, outcome_of
from worker.errors import ConfigurationError, ExitCode, PagemillError, ServiceUnavailable
from worker.sql.database import open_database, reading, writing
from worker.sql.store import JobStore
from worker.sql.tables import JobRow

SECRET = "s3cr3t/word"
QUOTED_SECRET = "s3cr3t%2Fword"


@contextmanager
def lock_on(database: Engine) -> Iterator[Connection]:
    """Hold the jobs against every other writer."""
    with writing(database) as connection:
        if database.dialect.name == "postgresql":
            connection.execute(text("LOCK TABLE jobs IN EXCLUSIVE MODE"))
        yield connection


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "cannot be parsed"),
        ("nonsense", "cannot be parsed"),
        (f"postgresql://me:{QUOTED_SECRET}@host:port/name", "cannot be parsed"),
        (f"mysql://me:{QUOTED_SECRET}@host/name", "'mysql' is not supported"),
        ("postgresql+asyncpg://host/name", "'postgresql+asyncpg' is not supported"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
    ],
)
def test_unusable_url_is_a_configuration_error(url: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(complaint)) as caught:
        open_database(url)
    assert_one_line(caught.value)
    assert str(caught.value).startswith("database_url: ")
    assert caught.value.exit_code is ExitCode.CONFIGURATION


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_url_gets_its_driver(scheme: str) -> None:
    database = open_database(f"{scheme}://me@host/name")
    assert database.url.drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{QUOTED_SECRET}@127.0.0.1:1/name",
        f"postgresql://me@127.0.0.1:1/name?password={QUOTED_SECRET}",
        f"postgresql://me:{QUOTED_SECRET}@host.invalid/name",
    ],
)
def test_unreachable_postgresql_is_one_line_without_password(url: str) -> None:
    store = JobStore(open_database(url))
    with pytest.raises(ServiceUnavailable, match=r"^cannot use the database at postgresql://me@") as caught:
        store.begin_attempts([claim_of("a")], "w1")
    assert_one_line(caught.value)
    assert caught.value.exit_code is ExitCode.UNAVAILABLE


def test_wrong_database_name_is_told(migrated_postgresql_url: str) -> None:
    base, _, _ = migrated_postgresql_url.rpartition("/")
    with (
        pytest.raises(ServiceUnavailable, match=r'database "absent" does not exist$') as caught,
        reading(open_database(f"{base}/absent")),
    ):
        pass
    assert_one_line(caught.value)


def test_sqlite_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "pagemill.db"
    database = open_database(f"sqlite:///{path}")
    with writing(database) as connection:
        connection.execute(text("CREATE TABLE notes (id INTEGER)"))
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.dispose()


def test_sqlite_file_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ServiceUnavailable, match=r"cannot use the database at sqlite:///.*: (Not a directory|File exists)"
    ):
        open_database(f"sqlite:///{tmp_path}/file/pagemill.db")


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "pagemill.db").write_text("Dear diary, " * 1000)
    database = open_database(f"sqlite:///{tmp_path}/pagemill.db")
    with pytest.raises(ServiceUnavailable, match="file is not a database"), reading(database):
        pass
    database.dispose()


def test_sqlite_is_durable_and_checks_references(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/pagemill.db", busy_timeout_ms=1234)
    with reading(database) as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    full = 2
    assert pragmas == {"journal_mode": "wal", "synchronous": full, "foreign_keys": 1, "busy_timeout": 1234}
    database.dispose()


def test_missing_tables_name_the_command(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    with pytest.raises(ConfigurationError, match=r"run `pagemill db upgrade`$") as caught:
        JobStore(database).job("a")
    assert_one_line(caught.value)
    database.dispose()


def test_held_lock_is_unavailable_after_the_timeout(database_url: str, database: Engine) -> None:
    hurried = open_database(database_url, busy_timeout_ms=50)
    hurried_store = JobStore(hurried)
    with lock_on(database):
        with pytest.raises(ServiceUnavailable, match="lock") as caught:
            hurried_store.begin_attempts([claim_of("a")], "w1")
        assert_one_line(caught.value)
        assert hurried_store.job("a") is None  # a reader does not wait for the writer
    hurried_store.begin_attempts([claim_of("a")], "w1")
    hurried.dispose()


def test_open_reader_neither_stops_a_writer_nor_sees_its_rows(database: Engine, store: JobStore) -> None:
    count = select(func.count()).select_from(JobRow)
    with reading(database) as reader:
        assert reader.scalar(count) == 0
        claim = claim_of("a")
        store.begin_attempts([claim], "w1")
        assert store.finish_attempts([outcome_of(claim)]) == frozenset()
        assert reader.scalar(count) == 0  # one snapshot for the whole of a report
    with reading(database) as reader:
        assert reader.scalar(count) == 1


def test_failed_block_rolls_back(database: Engine, store: JobStore) -> None:
    store.begin_attempts([claim_of("a")], "w1")
    with pytest.raises(OperationalError if database.dialect.name == "sqlite" else ProgrammingError):
        execute_all(database, "DELETE FROM attempts", "SELEKT 1")
    job = store.job("a")
    assert job is not None
    assert len(job.attempts) == 1


def test_other_errors_pass_unchanged_and_hide_their_rows(database: Engine) -> None:
    row = "INSERT INTO attempts (job_id, epoch, worker_name, state, started_at) VALUES (:id, 1, 'w', 'running', :at)"
    with pytest.raises(IntegrityError) as caught, writing(database) as connection:
        connection.execute(text(row), {"id": "private words", "at": "2026-03-01 12:00:00"})
    assert "[SQL parameters hidden" in str(caught.value)


def test_write_within_reading_is_refused_on_postgresql(migrated_postgresql_url: str) -> None:
    database = open_database(migrated_postgresql_url)
    with pytest.raises(PagemillError, match="read-only transaction"), reading(database) as connection:
        connection.execute(text("DELETE FROM jobs"))
    database.dispose()


def test_connection_lost_while_idle_is_replaced(postgresql_server: Engine, migrated_postgresql_url: str) -> None:
    database = open_database(migrated_postgresql_url)
    with reading(database) as connection:
        backend = connection.scalar(text("SELECT pg_backend_pid()"))
    with postgresql_server.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:backend)"), {"backend": backend})
    with reading(database) as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) != backend
    database.dispose()


def test_connection_lost_in_a_transaction_is_unavailable(migrated_postgresql_url: str) -> None:
    database = open_database(migrated_postgresql_url)
    with pytest.raises(ServiceUnavailable, match="terminat") as caught:
        execute_all(database, "SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1")
    assert_one_line(caught.value)
    database.dispose()


def test_python_driver_begins_nothing_itself(tmp_path: Path) -> None:
    """The engine's own BEGIN is the only one: a reader leaves the write lock to others."""
    database = open_database(f"sqlite:///{tmp_path}/pagemill.db", busy_timeout_ms=50)
    with reading(database) as reader:
        reader.execute(text("SELECT 1"))
        other = sqlite3.connect(tmp_path / "pagemill.db", timeout=0)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ServiceUnavailable, match="database is locked"), writing(database):
            pass
        other.close()
    database.dispose()


def test_pool_without_free_connection_is_unavailable(database: Engine) -> None:
    database.pool._timeout = 0.05  # type: ignore[attr-defined]
    held = [database.connect() for _ in range(15)]
    with pytest.raises(ServiceUnavailable, match="has no connection free"), reading(database):
        pass
    for connection in held:
        connection.close()


def execute_all(database: Engine, *statements: str) -> None:
    """Execute the statements in one transaction."""
    with writing(database) as connection:
        for statement in statements:
            connection.execute(text(statement))


def assert_one_line(error: PagemillError) -> None:
    """No traceback of a driver hangs on the error and no secret is in it."""
    message = str(error)
    assert "\n" not in message
    assert SECRET not in message
    assert QUOTED_SECRET not in message
    assert error.__suppress_context__ or error.__context__ is None
    assert not isinstance(error.__cause__, OperationalError)


def test_fresh_sqlite_file_opened_by_many_at_once(tmp_path: Path) -> None:
    def open_once(path: Path, barrier: threading.Barrier) -> None:
        engine = open_database(f"sqlite:///{path}")
        barrier.wait()
        with writing(engine) as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS t (a INTEGER)"))
        engine.dispose()

    for attempt in range(25):
        barrier = threading.Barrier(8)
        with ThreadPoolExecutor(8) as pool:
            opened = [pool.submit(open_once, tmp_path / f"{attempt}.db", barrier) for _ in range(8)]
        for one in opened:
            one.result()
