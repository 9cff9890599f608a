"""The Redis that tests may flush and configure at will. tests/conftest.py gives it to every area."""

import os
import socket
from collections.abc import Iterator

import pytest

from tests.servers import running_server

STANDARD_URL = "redis://127.0.0.1:6379/15"
FIRST_PROCESS = "gw0"  # pytest-xdist's name for it


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real Redis: PAGEMILL_TEST_REDIS_URL, or database 15 of the one on this machine.

    Tests change its configuration: of a parallel run's processes, each but the first has a server of its own.
    """
    if os.environ.get("PYTEST_XDIST_WORKER", FIRST_PROCESS) == FIRST_PROCESS:
        yield os.environ.get("PAGEMILL_TEST_REDIS_URL", STANDARD_URL)
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running_server("redis-server", tmp_path_factory.mktemp("redis"), f"port {port}", "bind 127.0.0.1"):
        yield f"redis://127.0.0.1:{port}/15"
