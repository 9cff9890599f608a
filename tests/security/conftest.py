"""Fixtures of the security tests."""

from tests.cli.conftest import own_logging
from tests.worker.conftest import connection, sqlite_file, sqlite_store

__all__ = ["connection", "own_logging", "sqlite_file", "sqlite_store"]
