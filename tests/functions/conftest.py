"""Fixtures of the function tests: an empty queue and database, and functions that wait for nobody's test but this."""

from collections.abc import Iterator

import pytest
import redis
from rq import Queue

from tests.functions import tasks
from tests.worker.conftest import connection, proxied, proxy, sqlite_file, sqlite_store

__all__ = ["connection", "proxied", "proxy", "sqlite_file", "sqlite_store"]


@pytest.fixture(autouse=True)
def fresh_tasks() -> Iterator[None]:
    """Forget what earlier tests' functions did, and let none of them wait any longer."""
    tasks.may_go_on.clear()
    tasks.begun.clear()
    yield
    tasks.may_go_on.set()


@pytest.fixture
def queue(connection: redis.Redis) -> Queue:
    """The queue as a producer with nothing but RQ sees it."""
    return Queue("default", connection=connection, serializer="json")
