"""Migrations on both databases: there, back, and at once."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect
from sqlalchemy.engine.interfaces import ReflectedIndex

from tests.sql.builders import claim_of, outcome_of
from worker.errors import ConfigurationError, ServiceUnavailable
from worker.sql import schema
from worker.sql.database import open_database, reading, writing
from worker.sql.store import JobStore
from worker.sql.tables import Base
from worker.sql.views import drop_views

ROOT = Path(__file__).resolve().parents[2]
HEAD = max(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))


def test_upgrade_makes_exactly_the_tables(empty_database_url: str) -> None:
    assert schema.current(empty_database_url) is None
    schema.upgrade(empty_database_url)
    assert schema.current(empty_database_url) == schema.head() == HEAD
    schema.check(empty_database_url)  # autogenerate finds no difference
    database = open_database(empty_database_url)
    migrated = describe(database)
    with writing(database) as connection:
        drop_views(connection)
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert migrated == describe(database)  # the CHECK constraints too, which autogenerate does not compare
    database.dispose()


def describe(database: Engine) -> dict[str, object]:
    """Return what the database says of its tables, constraints and indexes."""
    with reading(database) as connection:
        inspector = inspect(connection)
        return {
            name: {
                "columns": {
                    column["name"]: (str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)
                },
                "primary key": inspector.get_pk_constraint(name),
                "foreign keys": sorted(map(str, inspector.get_foreign_keys(name))),
                "unique": sorted(map(str, inspector.get_unique_constraints(name))),
                "checks": sorted(map(str, inspector.get_check_constraints(name))),
                "indexes": sorted(describe_index(index) for index in inspector.get_indexes(name)),
            }
            for name in Base.metadata.tables
        }


def describe_index(index: ReflectedIndex) -> str:
    options = {name: str(option) for name, option in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


def test_upgrade_again_keeps_the_rows(database_url: str, store: JobStore) -> None:
    claim = claim_of("a", batch_id="night")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim)])
    before = store.job("a")
    schema.upgrade(database_url)
    assert store.job("a") == before


def test_downgrade_leaves_nothing(empty_database_url: str) -> None:
    schema.upgrade(empty_database_url)
    schema.downgrade(empty_database_url, "base")
    assert schema.current(empty_database_url) is None
    database = open_database(empty_database_url)
    with reading(database) as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    database.dispose()
    schema.upgrade(empty_database_url)
    schema.check(empty_database_url)


def test_upgrades_at_once_do_it_once(empty_database_url: str) -> None:
    command = [sys.executable, "-c", "import sys; from worker.sql import schema; schema.upgrade(sys.argv[1])"]
    upgrades = [subprocess.Popen([*command, empty_database_url], cwd=ROOT) for _ in range(2)]
    assert [upgrade.wait(timeout=600) for upgrade in upgrades] == [0, 0]
    schema.check(empty_database_url)


def test_check_before_the_upgrade_names_the_command(empty_database_url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"has no tables yet and needs revision {HEAD}; run `pagemill db upgrade`$"
    ):
        schema.check(empty_database_url)


def test_unreachable_database_is_unavailable() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/name"
    for refused in (schema.check, schema.upgrade, schema.current):
        with pytest.raises(
            ServiceUnavailable, match=r"^cannot use the database at postgresql://me@127\.0\.0\.1:1/name: "
        ):
            refused(url)
