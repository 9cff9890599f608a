"""The commands' way to the database. Errors in the blocks below are one line for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from worker.settings_model import Settings
from worker.sql.database import open_database
from worker.sql.reporting import Reports
from worker.sql.store import JobStore


@contextmanager
def opened_database(settings: Settings) -> Iterator[Engine]:
    """Give the database and close its connections afterwards."""
    engine = open_database(settings.sql_url())
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def opened_store(settings: Settings) -> Iterator[JobStore]:
    """Give the job store and close its connections afterwards."""
    with opened_database(settings) as engine:
        yield JobStore(engine)


@contextmanager
def opened_reports(settings: Settings) -> Iterator[Reports]:
    """Give the reports and close their connections afterwards."""
    with opened_database(settings) as engine:
        yield Reports(engine)
