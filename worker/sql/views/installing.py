"""Making the views, and finding those that are not as they should be.

They are made anew after each upgrade rather than by single revisions: SQLite renames no table that a view reads, and a
view keeps no data.
"""

import psycopg
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from worker.errors import ConfigurationError
from worker.sql.views.definitions import View, views

_MAY_MAKE_TEMPORARY_VIEWS = text(
    "SELECT has_database_privilege(current_database(), 'TEMPORARY') AND NOT pg_is_in_recovery()"
)
_PROBE = "pagemill_expected_view"


def create_views(connection: Connection) -> None:
    """Make all views, in the caller's transaction; none is there."""
    for view in views(connection.dialect.name):
        connection.execute(_verbatim(view.statement))


def drop_views(connection: Connection) -> None:
    """Remove those of the views that are there, in the caller's transaction.

    Raises ConfigurationError where a view of the user's own reads one of them.
    """
    for view in reversed(views(connection.dialect.name)):
        try:
            connection.execute(text(f"DROP VIEW IF EXISTS {view.name}"))
        except DBAPIError as error:
            if not isinstance(error.orig, psycopg.errors.DependentObjectsStillExist):
                raise
            raise ConfigurationError(
                f"the view {view.name} is to be made anew, and something of your own is in the way: "
                f"{error.orig.diag.message_detail}; drop it, and make it again afterwards"
            ) from None


def differing_view(connection: Connection) -> tuple[str, str] | None:
    """Return the first view that is missing or not what this version makes, and which it is; None if all are right.

    PostgreSQL keeps no text of a view: to compare, one is made for a moment, in the caller's transaction. Where the
    user may not do so, or the server is a standby, a view that is there passes.
    """
    is_sqlite = connection.dialect.name == "sqlite"
    definition = _definition_in_sqlite if is_sqlite else _definition_in_postgresql
    can_compare = is_sqlite or connection.scalar(_MAY_MAKE_TEMPORARY_VIEWS)
    for view in views(connection.dialect.name):
        found = definition(connection, view.name)
        if found is None:
            return view.name, "is missing"
        if can_compare:
            expected = view.statement if is_sqlite else _expected_in_postgresql(connection, view)
            if found != expected:
                return view.name, "has another definition"
    return None


def _verbatim(statement: str) -> TextClause:
    return text(statement.replace(":", r"\:"))


def _definition_in_sqlite(connection: Connection, name: str) -> str | None:
    query = text("SELECT sql FROM sqlite_master WHERE type = 'view' AND name = :name")
    definition: str | None = connection.scalar(query, {"name": name})
    return definition


def _definition_in_postgresql(connection: Connection, name: str) -> str | None:
    query = text("SELECT pg_get_viewdef(oid) FROM pg_class WHERE oid = to_regclass(:name) AND relkind = 'v'")
    definition: str | None = connection.scalar(query, {"name": name})
    return definition


def _expected_in_postgresql(connection: Connection, view: View) -> str | None:
    moment = connection.begin_nested()
    connection.execute(_verbatim(f"CREATE TEMPORARY VIEW {_PROBE} AS {view.select}"))
    definition = _definition_in_postgresql(connection, _PROBE)
    moment.rollback()
    return definition
