"""Fixtures that need a server or a database. tests/conftest.py gives them to every area."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Engine, delete

from scripts.fault_table.postgresql import NoServer, connect_to_server, create_database, drop_database
from worker.errors import ServiceUnavailable
from worker.queue.connection import connect
from worker.sql import schema
from worker.sql.database import open_database, writing
from worker.sql.store import JobStore
from worker.sql.tables import Base


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[Engine]:
    """A PostgreSQL server on which databases can be made: PAGEMILL_TEST_POSTGRESQL_URL, or the one on this machine."""
    try:
        server = connect_to_server()
    except NoServer as error:
        missing_service(str(error))
    yield server
    server.dispose()


@pytest.fixture(scope="session")
def migrated_postgresql_url(postgresql_server: Engine) -> Iterator[str]:
    """One PostgreSQL database at the latest revision, for the whole session; each test finds it empty."""
    name = f"pagemill_test_{uuid4().hex}"
    url = create_database(postgresql_server, name)
    schema.upgrade(url)
    yield url
    drop_database(postgresql_server, name)


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database at the latest revision, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "pagemill.db"
    schema.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database at the latest revision, without rows; the test runs once on each kind."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("migrated_sqlite_file"), tmp_path)
        return f"sqlite:///{tmp_path}/pagemill.db"
    url: str = request.getfixturevalue("postgresql_url")
    return url


@pytest.fixture
def postgresql_url(migrated_postgresql_url: str) -> str:
    """The URL of a PostgreSQL database at the latest revision, without rows."""
    database = open_database(migrated_postgresql_url)
    with writing(database) as connection:
        for table in reversed(Base.metadata.sorted_tables):  # on few rows, faster than TRUNCATE
            connection.execute(delete(table))
    database.dispose()
    return migrated_postgresql_url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables; the test runs once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pagemill.db"
        return
    server: Engine = request.getfixturevalue("postgresql_server")
    name = f"pagemill_test_{uuid4().hex}"
    yield create_database(server, name)
    drop_database(server, name)


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    """An open database at the latest revision, without rows; the test runs once on each kind."""
    opened = open_database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def store(database: Engine) -> JobStore:
    """A job store without jobs; the test runs once on each kind of database."""
    return JobStore(database)


@pytest.fixture(scope="session")
def embedded_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder whose embedded queue runs for the whole session; each test finds it empty."""
    data_dir = tmp_path_factory.mktemp("embedded")
    keeper = connect(None, data_dir)
    yield data_dir
    keeper.close()


@pytest.fixture(params=["embedded", "redis"])
def queue_connection(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """An empty queue; the test runs once on the embedded server and once on a real Redis, which is flushed."""
    if request.param == "embedded":
        connection = connect(None, request.getfixturevalue("embedded_data_dir"))
    else:
        try:
            connection = connect(request.getfixturevalue("redis_url"), Path())
        except ServiceUnavailable as error:
            missing_service(f"no Redis server: {error}")
    connection.flushdb()
    yield connection
    connection.flushdb()
    connection.close()


def missing_service(reason: str) -> NoReturn:
    """Skip the test with the reason; fail it where every service must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
