"""What Alembic runs: the revisions, in one transaction on the connection that `worker.sql.schema` hands over.

The views are no part of single revisions: they go before the first one, since SQLite cannot write a table anew under a
view, and those of this version are made at the end of its last one.

A developer's `alembic -x url=...` has no connection to hand over and gets one here.
"""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection, text

from worker.sql.database import open_database
from worker.sql.tables import Base, StorableText, UtcDateTime
from worker.sql.views import create_views, differing_view, drop_views

UPGRADE_LOCK = 0x9A6E_3111  # PostgreSQL's advisory lock: one upgrade at a time


def render_type(kind: str, value: Any, _context: AutogenContext) -> str | Literal[False]:
    """Write our own column types into new revisions as what they are in SQL, so that a revision imports no `worker`."""
    if kind == "type" and isinstance(value, StorableText):
        return "sa.Text()"
    if kind == "type" and isinstance(value, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def run_with_views(connection: Connection) -> None:
    """Run the revisions without views, and make the views if that leads to the latest one."""
    alembic, head = context.get_context(), context.get_head_revision()
    try:
        destination = context.get_revision_argument()
    except KeyError:  # a developer's `revision` goes nowhere
        context.run_migrations()
        return
    if alembic.get_current_revision() == head == destination and differing_view(connection) is None:
        return
    drop_views(connection)
    context.run_migrations()
    if alembic.get_current_revision() == head:
        create_views(connection)


def migrate(connection: Connection) -> None:
    """Run what the command asked for; all of it or nothing."""
    is_sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=is_sqlite,  # SQLite alters a table by writing it anew
        render_item=render_type,
        transactional_ddl=True,
        compare_type=True,
    )
    with context.begin_transaction():
        if not is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        run_with_views(connection)
        if is_sqlite:  # its foreign keys are off meanwhile
            broken = connection.execute(text("PRAGMA foreign_key_check")).first()
            assert broken is None, f"a revision broke a foreign key: {broken}"


handed_over = context.config.attributes.get("connection")
if handed_over is None:
    with open_database(context.get_x_argument(as_dictionary=True)["url"]).connect() as own:
        migrate(own)
else:
    migrate(handed_over)
