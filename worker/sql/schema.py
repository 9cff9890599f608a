"""The database's schema: bringing it to the latest revision, and saying at which it is.

The revisions are the package `migrations`, which Alembic finds by name: nothing here imports it.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from worker.errors import ConfigurationError
from worker.sql.database import database_errors, open_database, parse_database_url, place_of, reading, writing
from worker.sql.drift import Difference, Harm, find_differences, find_view_differences, other_tables
from worker.sql.tables import Base

SCRIPT_LOCATION = "migrations:"  # package, then a path in it

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """How a database compares with what this version expects."""

    revision: str
    is_later: bool  # a later version's revision, which this one does not know
    differences: tuple[Difference, ...]  # of a later one: what this version would miss, or what would refuse its rows
    other_tables: tuple[str, ...]  # that are not ours


def check(url: str) -> None:
    """Raise ConfigurationError unless this version can work with the database: it is at `head()`, or at a later
    version's revision, and nothing is missing that this version needs. What others added is logged.
    """
    report = examine(url)
    place = place_of(parse_database_url(url))
    breaking = [difference for difference in report.differences if difference.harm is Harm.BREAKING]
    if report.is_later:
        if breaking:
            raise ConfigurationError(
                f"the database at {place} is at revision {report.revision} of a later version of Pagemill, with which "
                f"this one cannot work ({breaking[0]}); install that version"
            )
        logger.warning(
            "the database at %s is at revision %s of a later version, and still has all that this one needs",
            place,
            report.revision,
        )
    elif breaking:
        raise ConfigurationError(
            f"the database at {place} was changed by hand: it is at revision {report.revision} but differs in "
            f"{len(breaking)} places, first {breaking[0]}; see `pagemill db check`"
        )


def examine(url: str) -> SchemaReport:
    """Compare the database with what this version expects. Raises ServiceUnavailable, and ConfigurationError for one
    that has no tables yet or is at an earlier revision.
    """
    with _opened(url) as engine:
        with reading(engine) as connection:
            context = MigrationContext.configure(connection)
            revision = context.get_current_revision()
            is_later = revision is not None and not _is_known(revision)
            if revision is None or (revision != head() and not is_later):
                has = "has no tables yet" if revision is None else f"is at revision {revision}"
                raise ConfigurationError(
                    f"the database at {place_of(engine.url)} {has} and needs revision {head()}; "
                    "run `pagemill db upgrade`"
                )
            differences = find_differences(connection, Base.metadata)
            others = other_tables(connection, Base.metadata, context.version_table)
        if is_later:  # what it has besides is its own business, and so are its views
            differences = tuple(difference for difference in differences if difference.harm is Harm.BREAKING)
        else:
            opened = reading if engine.dialect.name == "sqlite" else writing  # PostgreSQL's are compared with new ones
            with opened(engine) as connection:
                differences += find_view_differences(connection)
        return SchemaReport(revision, is_later, differences, others)


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


def _is_known(revision: str) -> bool:
    return revision in {script.revision for script in _script().walk_revisions()}


def _refuse_unknown(revision: str | None, engine: Engine) -> None:
    if revision is not None and not _is_known(revision):
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
