"""Fixtures of the end-to-end tests: machines with the real model."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts.fault_table.postgresql import create_database, drop_database
from tests.e2e.machine import Machine, open_machine
from tests.services import missing_service
from worker.errors import ServiceUnavailable
from worker.queue.connection import connect

REDIS_DATABASE = "/14"  # flushed; that of the other tests is another


@pytest.fixture
def embedded_machine(tmp_path: Path, smollm2_gguf: Path) -> Iterator[Machine]:
    """A machine on the embedded queue and SQLite."""
    with open_machine(tmp_path, smollm2_gguf, f"sqlite:///{tmp_path}/pagemill.db", None) as machine:
        yield machine


@pytest.fixture
def server_machine(
    request: pytest.FixtureRequest, redis_url: str, tmp_path: Path, smollm2_gguf: Path
) -> Iterator[Machine]:
    """A machine on a real Redis and a real PostgreSQL."""
    redis_url = urlsplit(redis_url)._replace(path=REDIS_DATABASE).geturl()
    try:
        connection = connect(redis_url, Path())
    except ServiceUnavailable as error:
        missing_service(f"no Redis server: {error}")
    server = request.getfixturevalue("postgresql_server")
    name = f"pagemill_e2e_{os.getpid()}"
    connection.flushdb()
    try:
        with open_machine(tmp_path, smollm2_gguf, create_database(server, name), redis_url) as machine:
            yield machine
    finally:
        drop_database(server, name)
        connection.flushdb()
        connection.close()


@pytest.fixture(params=["embedded", "servers"])
def machine(request: pytest.FixtureRequest) -> Machine:
    """A machine; the test runs once on each kind."""
    machine: Machine = request.getfixturevalue(f"{request.param.removesuffix('s')}_machine")
    return machine
