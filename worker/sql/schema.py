"""The database's schema: bringing it to the latest revision, and saying at which it is.

The revisions are the package `migrations`, which Alembic finds by name: nothing here imports it.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from worker.errors import ConfigurationError
from worker.sql.database import database_errors, open_database, place_of, reading, writing
from worker.sql.tables import Base
from worker.sql.views import differing_view

SCRIPT_LOCATION = "migrations:"  # package, then a path in it


def head() -> str:
    """Return the revision that this version of Pagemill needs."""
    revision = _script().get_current_head()
    assert revision is not None, "the migrations package has no revision"
    return revision


def current(url: str) -> str | None:
    """Return the revision that the database is at, None for one without tables. Raises ServiceUnavailable."""
    with _opened(url) as engine, reading(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: str) -> None:
    """Bring the database to `head()`, all of it or nothing; a database that is there already stays as it is.

    Processes may do so at once. Within one, Alembic keeps its state globally: one thread at a time.

    Raises ServiceUnavailable, and ConfigurationError for a database of a later version of Pagemill.
    """
    with _opened(url) as engine, database_errors(engine.url), engine.connect() as connection:
        _refuse_unknown(current(url), engine)
        _suspend_foreign_keys(connection)
        command.upgrade(_config(connection), "head")


def downgrade(url: str, revision: str) -> None:
    """Take the database back to `revision` ("base" for none); what later ones added is lost. Raises as `upgrade`."""
    with _opened(url) as engine, database_errors(engine.url), engine.connect() as connection:
        _suspend_foreign_keys(connection)
        command.downgrade(_config(connection), revision)


def check(url: str) -> None:
    """Raise ConfigurationError unless the database is at `head()`, and its tables and views are what this version
    expects.
    """
    with _opened(url) as engine, reading(engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        revision = context.get_current_revision()
        _refuse_unknown(revision, engine)
        if revision != head():
            has = "has no tables yet" if revision is None else f"is at revision {revision}"
            raise ConfigurationError(
                f"the database at {place_of(engine.url)} {has} and needs revision {head()}; run `pagemill db upgrade`"
            )
        differences = compare_metadata(context, Base.metadata)
        if differences:
            raise ConfigurationError(
                f"the database at {place_of(engine.url)} was changed by hand: it is at revision {revision} but differs "
                f"in {len(differences)} places, first {_describe(differences[0])}"
            )
        _check_views(engine, revision)


@contextmanager
def _opened(url: str) -> Iterator[Engine]:
    engine = open_database(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPT_LOCATION)
    config.attributes["connection"] = connection
    return config


def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _refuse_unknown(revision: str | None, engine: Engine) -> None:
    known = {script.revision for script in _script().walk_revisions()}
    if revision is not None and revision not in known:
        raise ConfigurationError(
            f"the database at {place_of(engine.url)} is at revision {revision}, which this version of Pagemill "
            f"does not know; it needs {head()}: install a later version"
        )


def _suspend_foreign_keys(connection: Connection) -> None:
    """Let SQLite write a table anew without its references firing. The pragma is for outside a transaction only, so it
    goes past SQLAlchemy, which would begin one.
    """
    driver_connection = connection.connection.driver_connection
    if isinstance(driver_connection, sqlite3.Connection):
        driver_connection.execute("PRAGMA foreign_keys=OFF")


def _check_views(engine: Engine, revision: str) -> None:
    opened = reading if engine.dialect.name == "sqlite" else writing  # PostgreSQL's are compared with views of a moment
    with opened(engine) as connection:
        difference = differing_view(connection)
    if difference is not None:
        raise ConfigurationError(
            f"the database at {place_of(engine.url)} was changed by hand: it is at revision {revision} but "
            f"{difference}; `pagemill db upgrade` makes the views anew"
        )


def _describe(difference: Any) -> str:
    first = difference[0] if isinstance(difference, list) else difference
    operation, *subjects = first
    names = [str(getattr(subject, "name", subject)) for subject in subjects if subject is not None]
    return f"{operation} {' '.join(names)}"
