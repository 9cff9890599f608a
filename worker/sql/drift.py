"""How a database's tables differ from those that this version expects, and which differences it cannot live with.

Tables of others in the same database (an app's own, beside an outbox) are nobody's business.
"""

import warnings
from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection, MetaData, inspect
from sqlalchemy.exc import SAWarning

from worker.sql.views import differing_view


class Harm(StrEnum):
    """What a difference does to a worker."""

    BREAKING = "breaking"  # it lacks what the worker needs, or may refuse what the worker writes
    EXTRA = "extra"  # the worker does not notice


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a database is not as expected, in words."""

    kind: str  # table or view
    name: str
    what: str
    harm: Harm

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.what}"


def find_differences(connection: Connection, metadata: MetaData) -> tuple[Difference, ...]:
    """Compare tables, columns, types, keys, indexes and the names of CHECK constraints."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # an index of others on an expression, say, cannot be read
        found = compare_metadata(context, metadata)
    flat = [step for change in found for step in (change if isinstance(change, list) else [change])]
    missing = {step[1].name for step in flat if step[0] == "add_table"}  # and with each its indexes
    differences = [difference for step in flat for difference in _describe(step, missing)]
    differences += _compare_checks(connection, metadata)
    ours = set(metadata.tables)
    return tuple(difference for difference in differences if difference.name in ours)


def _describe(step: tuple[Any, ...], missing_tables: Container[str]) -> Iterator[Difference]:
    """Put one of Alembic's steps, which would make the database as expected, into words."""
    operation, subject = step[0], step[1]
    kind, _, noun = operation.partition("_")
    if operation == "add_table":
        yield Difference("table", subject.name, "is missing", Harm.BREAKING)
    elif noun == "column":
        table, column = step[2], step[3]
        if kind == "add":
            yield Difference("table", table, f"column {column.name} is missing", Harm.BREAKING)
        else:
            refuses = not column.nullable and column.server_default is None
            harm = Harm.BREAKING if refuses else Harm.EXTRA
            note = ", which refuses rows without it" if refuses else ""
            yield Difference("table", table, f"column {column.name} is extra{note}", harm)
    elif kind == "modify":
        table, column, was, should = step[2], step[3], step[-2], step[-1]
        yield Difference("table", table, f"column {column} has {noun} {was!s}, not {should!s}", Harm.BREAKING)
    elif noun in ("index", "constraint", "fk"):
        name = {"index": "index", "constraint": "constraint", "fk": "foreign key"}[noun]
        if subject.table.name in missing_tables:
            return
        if kind == "add":
            yield Difference("table", subject.table.name, f"{name} {subject.name} is missing", Harm.BREAKING)
        else:
            harm = Harm.EXTRA if noun == "index" and not subject.unique else Harm.BREAKING
            yield Difference("table", subject.table.name, f"{name} {subject.name} is extra", harm)


def _compare_checks(connection: Connection, metadata: MetaData) -> Iterator[Difference]:
    """Compare CHECK constraints by name: PostgreSQL writes their conditions in its own words."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names())
    for name, table in metadata.tables.items():
        if name not in there:
            continue
        expected = {str(check.name) for check in table.constraints if isinstance(check, CheckConstraint)}
        found = {str(check["name"]) for check in inspector.get_check_constraints(name)}
        for missing in sorted(expected - found):
            yield Difference("table", name, f"check {missing} is missing", Harm.BREAKING)
        for extra in sorted(found - expected):
            yield Difference("table", name, f"check {extra} is extra, and may refuse rows", Harm.BREAKING)


def find_view_differences(connection: Connection) -> tuple[Difference, ...]:
    """Return the first view that is not as expected. On PostgreSQL, in a transaction that may write."""
    differing = differing_view(connection)
    if differing is None:
        return ()
    name, what = differing
    return (Difference("view", name, f"{what}; `pagemill db upgrade` makes it anew", Harm.BREAKING),)


def other_tables(connection: Connection, metadata: MetaData, version_table: str) -> tuple[str, ...]:
    """Return the names of tables that are not ours."""
    names = set(inspect(connection).get_table_names())
    return tuple(sorted(names - set(metadata.tables) - {version_table}))
