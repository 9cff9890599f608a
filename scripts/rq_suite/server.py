"""The server of a suite's run: a throw-away one, or one that the user names."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from scripts.rq_suite.sdist import SuiteError
from worker.queue.embedded import find_server

HOST = "127.0.0.1"
START_SECONDS = 30.0


@contextmanager
def throw_away_server(folder: Path) -> Iterator[str]:
    """Start a server that keeps nothing; yield its host:port. It ends with the block."""
    port = _free_port()
    options = ("--bind", HOST, "--port", str(port), "--dir", str(folder), "--save", "", "--loglevel", "warning")
    with subprocess.Popen([str(find_server()), *options], stdout=subprocess.DEVNULL) as server:
        try:
            _await(f"{HOST}:{port}")
            yield f"{HOST}:{port}"
        finally:
            server.terminate()


@contextmanager
def named_server(url: str) -> Iterator[str]:
    """Yield the host:port of a server that runs already. Raises SuiteError for a URL that RQ's tests cannot use."""
    options = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    if "path" in options or "password" in options or url.startswith("rediss"):
        raise SuiteError("--redis-url: RQ's tests connect to a host and port without password or TLS")
    address = f"{options.get('host', HOST)}:{options.get('port', 6379)}"
    _await(address)
    yield address


def _await(address: str) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with redis.Redis(host=host, port=int(port)) as connection:
                connection.ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise SuiteError(f"no server at {address}") from None
            time.sleep(0.05)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
