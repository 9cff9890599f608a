"""The commands' way to the database. Errors in the blocks below are one line for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

from worker.settings_model import Settings
from worker.sql.database import open_database
from worker.sql.reporting import Reports
from worker.sql.store import JobStore


@contextmanager
def opened_store(settings: Settings) -> Iterator[JobStore]:
    """Give the job store and close its connections afterwards."""
    engine = open_database(settings.sql_url())
    try:
        yield JobStore(engine)
    finally:
        engine.dispose()


@contextmanager
def opened_reports(settings: Settings) -> Iterator[Reports]:
    """Give the reports and close their connections afterwards."""
    engine = open_database(settings.sql_url())
    try:
        yield Reports(engine)
    finally:
        engine.dispose()
