"""Drift: what somebody changed in the tables by hand is found, and told by what it does to a worker."""

import pytest
from sqlalchemy import make_url, text

from tests.sql.builders import claim_of, outcome_of
from worker.errors import ConfigurationError
from worker.sql import schema
from worker.sql.database import open_database, writing
from worker.sql.drift import Harm
from worker.sql.store import JobStore

EXTRA = {
    "ALTER TABLE jobs ADD COLUMN note TEXT": "table jobs: column note is extra",
    "CREATE INDEX by_tenant ON jobs (tenant)": "table jobs: index by_tenant is extra",
    "ALTER TABLE workers ADD COLUMN rack TEXT NOT NULL DEFAULT ''": "table workers: column rack is extra",
}
BREAKING = {
    "DROP INDEX ix_jobs_ended_at": "table jobs: index ix_jobs_ended_at is missing",
    "ALTER TABLE leaders DROP COLUMN holder": "table leaders: column holder is missing",
    "CREATE UNIQUE INDEX one_each ON jobs (custom_id)": "table jobs: index one_each is extra",
}
BREAKING_ON_POSTGRESQL = {
    "ALTER TABLE leaders ALTER COLUMN epoch TYPE integer": "table leaders: column epoch has type INTEGER, not BIGINT",
    "ALTER TABLE jobs ALTER COLUMN queue DROP NOT NULL": "table jobs: column queue has nullable True, not False",
    "ALTER TABLE jobs DROP CONSTRAINT ck_jobs_state": "table jobs: check ck_jobs_state is missing",
    "ALTER TABLE jobs ADD CONSTRAINT small CHECK (attempt_count < 5)": (
        "table jobs: check small is extra, and may refuse rows"
    ),
    "ALTER TABLE workers ADD COLUMN rack TEXT NOT NULL": (
        "table workers: column rack is extra, which refuses rows without it"
    ),
    "DROP TABLE summary_jobs": "table summary_jobs: is missing",
}
OTHERS = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)",
    "CREATE INDEX orders_by_name ON orders (lower(name))",
)


def execute(url: str, *statements: str) -> None:
    database = open_database(url)
    with writing(database) as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.dispose()


def found(url: str) -> list[tuple[str, Harm]]:
    return sorted((str(difference), difference.harm) for difference in schema.examine(url).differences)


@pytest.fixture
def own_database_url(empty_database_url: str) -> str:
    """The URL of a database at the latest revision that nobody else uses."""
    schema.upgrade(empty_database_url)
    return empty_database_url


def test_what_others_added_is_told_and_does_not_stop_a_worker(own_database_url: str) -> None:
    execute(own_database_url, *EXTRA, *OTHERS)
    assert found(own_database_url) == sorted((what, Harm.EXTRA) for what in EXTRA.values())
    assert schema.examine(own_database_url).other_tables == ("orders",)
    schema.check(own_database_url)
    database = open_database(own_database_url)
    store, claim = JobStore(database), claim_of("a")
    store.begin_attempts([claim], "w")
    assert store.finish_attempts([outcome_of(claim)]) == frozenset()
    database.dispose()


def test_what_a_worker_cannot_live_with_stops_it(own_database_url: str) -> None:
    is_postgresql = make_url(own_database_url).get_backend_name() == "postgresql"
    changes = {**BREAKING, **(BREAKING_ON_POSTGRESQL if is_postgresql else {})}
    execute(own_database_url, *changes)
    differences = found(own_database_url)
    assert differences == sorted((what, Harm.BREAKING) for what in changes.values())
    with pytest.raises(
        ConfigurationError, match=rf"differs in {len(changes)} places, first table .*`pagemill db check`$"
    ):
        schema.check(own_database_url)


def test_later_database_that_only_grew_serves_an_older_worker(
    own_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    grow = ("UPDATE alembic_version SET version_num = '9999'", *EXTRA, *OTHERS)
    execute(own_database_url, *grow)
    schema.check(own_database_url)
    assert "is at revision 9999 of a later version, and still has all that this one needs" in caplog.text
    assert schema.examine(own_database_url).differences == ()
    execute(own_database_url, "ALTER TABLE leaders DROP COLUMN holder")
    with pytest.raises(
        ConfigurationError,
        match=r"cannot work \(table leaders: column holder is missing\); install that version$",
    ):
        schema.check(own_database_url)


def test_upgrade_never_touches_a_later_database(own_database_url: str) -> None:
    execute(own_database_url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ConfigurationError, match="is at revision 9999, which this version of Pagemill does not know"):
        schema.upgrade(own_database_url)
    assert schema.current(own_database_url) == "9999"
