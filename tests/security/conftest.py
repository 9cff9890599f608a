"""Fixtures of the security tests."""

from tests.worker.conftest import connection, sqlite_file, sqlite_store

__all__ = ["connection", "sqlite_file", "sqlite_store"]
