"""Fixtures of the clients' tests: an embedded queue and a worker with a scripted model."""

from tests.worker.conftest import connection, proxied, proxy, sqlite_file, sqlite_store

__all__ = ["connection", "proxied", "proxy", "sqlite_file", "sqlite_store"]
