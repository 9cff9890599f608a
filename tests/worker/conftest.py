"""Fixtures of the worker's tests: an embedded queue and an SQLite database, both empty."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from scripts.fault_table.proxy import Proxy, proxying
from worker.queue.connection import connect
from worker.sql.database import open_database
from worker.sql.store import JobStore


@pytest.fixture
def connection(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


@pytest.fixture
def sqlite_file(tmp_path: Path, migrated_sqlite_file: Path) -> Path:
    """A database without jobs."""
    return Path(shutil.copy(migrated_sqlite_file, tmp_path))


@pytest.fixture
def sqlite_store(sqlite_file: Path) -> Iterator[JobStore]:
    """The store on `sqlite_file`; it does not wait long for a lock, so that outages are short work."""
    database = open_database(f"sqlite:///{sqlite_file}", busy_timeout_ms=200)
    yield JobStore(database)
    database.dispose()


@pytest.fixture
def proxy(connection: redis.Redis, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy before the emptied embedded queue."""
    target = connection.connection_pool.connection_kwargs["server"].paths.socket_path
    with proxying(target, tmp_path / "proxy.sock") as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy) -> Iterator[redis.Redis]:
    """A connection through the proxy."""
    with closing(connect(proxy.url, Path())) as connection:
        yield connection
