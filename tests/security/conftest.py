"""Fixtures of the security tests."""

from tests.worker.conftest import sqlite_file, sqlite_store

__all__ = ["sqlite_file", "sqlite_store"]
