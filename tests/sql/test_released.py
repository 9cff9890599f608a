"""Databases and programs of every released revision against this version: rows stay, and old workers work on.

tests/sql/released has what each revision's code wrote and said; its freeze.py says how that came about.
"""

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Json
from sqlalchemy import inspect, make_url, text

from tests.sql.builders import after, claim_of, outcome_of
from worker.records import AttemptState, JobState
from worker.sql import schema
from worker.sql.database import open_database, reading, writing
from worker.sql.store import JobStore
from worker.sql.tables import Base

FOLDER = Path(__file__).resolve().parent / "released"
ROOT = FOLDER.parents[2]
# Nothing is frozen of 0003 to 0011, nor of 0019, which was changed once more when 0020 was there already.
REVISIONS = ("0001", "0002", *(f"{number:04}" for number in (*range(12, 19), 20, 21)))
EPOCH = 1_777_622_400_000_000

Contents = dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]]  # table -> its columns, its rows


def load(url: str, revision: str) -> None:
    """Fill an empty database with what a revision's code left."""
    kind = make_url(url).get_backend_name()
    dump = (FOLDER / f"{revision}.{kind}.sql").read_text()
    if kind == "sqlite":
        with closing(sqlite3.connect(make_url(url).database or "")) as connection:
            connection.executescript(dump)
        return
    database = open_database(url)
    with writing(database) as opened:
        opened.connection.cursor().execute(dump)  # without parameters, it may hold many statements
    database.dispose()


def steps_of(url: str, revision: str) -> list[list[tuple[str, Any]]]:
    """Return what a worker and a producer of a revision said to their database, by transaction."""
    path = FOLDER / f"{revision}.{make_url(url).get_backend_name()}.json"
    return [[(statement, decode(values)) for statement, values in step] for step in json.loads(path.read_text())]


def decode(value: Any) -> Any:
    """Undo freeze.py's encoding; a list of values is one statement's, a list of lists or objects is many's."""
    if isinstance(value, dict):
        if value.keys() == {"time"}:
            return datetime.fromisoformat(value["time"])
        if value.keys() == {"json"}:
            return Json(value["json"])
        return {name: decode(item) for name, item in value.items()}
    if isinstance(value, list):
        items = [decode(item) for item in value]
        return items if items and isinstance(items[0], dict | tuple) else tuple(items)
    return value


def say(url: str, steps: list[list[tuple[str, Any]]]) -> None:
    """Say statements to a database, each step in a transaction of its own."""
    database = open_database(url)
    for step in steps:
        with writing(database) as connection:
            for statement, parameters in step:
                many = isinstance(parameters, tuple) and parameters and isinstance(parameters[0], tuple)
                connection.exec_driver_sql(statement, list(parameters) if many else parameters)
    database.dispose()


def contents(url: str, like: Contents | None = None) -> Contents:
    """Return the rows of a database, of the tables and columns in `like` if given."""
    database = open_database(url)
    with reading(database) as connection:
        inspector = inspect(connection)
        tables = list(like) if like else [name for name in inspector.get_table_names() if name in Base.metadata.tables]
        found: Contents = {}
        for name in tables:
            columns = like[name][0] if like else tuple(column["name"] for column in inspector.get_columns(name))
            rows = connection.execute(text(f"SELECT {', '.join(columns)} FROM {name}"))
            found[name] = columns, sorted((tuple(row) for row in rows), key=str)
    database.dispose()
    return found


def test_every_released_revision_is_frozen() -> None:
    kinds = ("postgresql.json", "postgresql.sql", "sqlite.json", "sqlite.sql")
    frozen = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".json", ".sql"))
    assert frozen == [f"{revision}.{kind}" for revision in REVISIONS for kind in kinds]


@pytest.mark.parametrize("revision", REVISIONS)
def test_upgrade_keeps_what_a_revision_wrote(empty_database_url: str, revision: str) -> None:
    load(empty_database_url, revision)
    before = contents(empty_database_url)
    schema.upgrade(empty_database_url)
    schema.check(empty_database_url)
    assert contents(empty_database_url, before) == before
    schema.downgrade(empty_database_url, revision)
    assert contents(empty_database_url) == before
    schema.upgrade(empty_database_url)
    database = open_database(empty_database_url)
    check_jobs(JobStore(database, clock=lambda: after(1000)))
    database.dispose()


def check_jobs(store: JobStore) -> None:
    """Read an old database's jobs, and go on with those that have not ended."""
    odd = store.job("odd")
    assert odd is not None
    assert odd.result is not None
    assert odd.result.text == (
        "Zürich 東京 👩\u200d🚀 <b> '; DROP TABLE jobs; -- =cmd() \x1b[31m NUL \ufffd and half a pair \ufffd"
    )
    assert json.loads(odd.payload)["prompt"] == "日本語 🎌"
    once_lost = store.job("lost-once")
    assert once_lost is not None
    assert [(attempt.state, attempt.error_code) for attempt in once_lost.attempts] == [
        (AttemptState.LOST, "fenced"),
        (AttemptState.DONE, None),
    ]
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.states[JobState.DONE]) == (3, 1)
    assert {worker.record.name: worker.stopped_at is None for worker in store.workers()} == {
        "w-running": True,
        "w-stopped": False,
    }
    running = claim_of("running", EPOCH)
    assert store.finish_attempts([outcome_of(running, at_s=900)]) == frozenset()
    again = claim_of("handed-back", EPOCH + 50)
    begun = store.begin_attempts([again], "w-new").begun["handed-back"]
    assert (begun.attempt_count, begun.retry_count) == (2, 0)
    assert store.finish_attempts([outcome_of(again, at_s=950)]) == frozenset()
    assert store.states(["running", "handed-back", "dead"]) == {
        "running": JobState.DONE,
        "handed-back": JobState.DONE,
        "dead": JobState.DEAD,
    }


@pytest.mark.parametrize("revision", REVISIONS)
def test_old_worker_works_on_while_and_after_the_database_is_upgraded(empty_database_url: str, revision: str) -> None:
    load(empty_database_url, revision)
    expected = contents(empty_database_url)
    clear(empty_database_url, list(expected))
    steps = steps_of(empty_database_url, revision)
    say(empty_database_url, steps[: len(steps) // 4])
    schema.upgrade(empty_database_url)
    say(empty_database_url, steps[len(steps) // 4 :])
    assert contents(empty_database_url, expected) == expected


def clear(url: str, tables: Sequence[str]) -> None:
    """Delete all rows, and count ids from 1 again."""
    database = open_database(url)
    with writing(database) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY"))
        else:  # it counts from the highest id that is there
            for table in reversed(Base.metadata.sorted_tables):
                if table.name in tables:
                    connection.execute(table.delete())
    database.dispose()


DIES = """
import os, signal, sys
from sqlalchemy import Engine, event
from worker.sql import schema

url, moment = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def die_when_it_versions(connection, cursor, statement, *_):
    if statement.startswith("UPDATE alembic_version"):
        die()

if moment == "commit":
    event.listen(Engine, "commit", die)
else:
    event.listen(Engine, "after_cursor_execute", die_when_it_versions)
schema.upgrade(url)
"""


@pytest.mark.parametrize("moment", ["between two revisions", "commit"])
def test_upgrade_that_is_killed_has_done_nothing(empty_database_url: str, moment: str) -> None:
    load(empty_database_url, "0001")
    before = contents(empty_database_url)
    command = [sys.executable, "-c", DIES, empty_database_url, moment]
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert schema.current(empty_database_url) == "0001"
    assert contents(empty_database_url) == before
    schema.upgrade(empty_database_url)
    schema.check(empty_database_url)
    assert contents(empty_database_url, before) == before
