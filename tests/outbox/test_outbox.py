"""The outbox: a job exists if and only if the app's transaction commits, and then once."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from rq import Queue
from sqlalchemy import Engine
from sqlalchemy import text as sql
from sqlalchemy.orm import Session

from tests.worker.fakes import make_flow
from worker import outbox
from worker.errors import InvalidJob, PagemillError, ServiceUnavailable
from worker.outbox.relaying import PAGE_ROWS, Relay
from worker.queue.connection import connect
from worker.queue.embedded import embedded_url
from worker.records import JobState
from worker.running.failpoints import Failpoints, parse_faults
from worker.sql.outbox import OutboxStatus
from worker.sql.store import JobStore

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = "import sys; from worker.cli.main import main; main()"
EMPTY = OutboxStatus(0, 0, None)


@pytest.fixture
def connection(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


def relay_of(store: JobStore, connection: redis.Redis, faults: str = "") -> Relay:
    return Relay(store, connection, 60, Failpoints(parse_faults(faults)), lambda: False)


def waiting(connection: redis.Redis, queue: str = "default") -> list[str]:
    ids: list[str] = Queue(queue, connection=connection).job_ids
    return ids


def settle_redo(database: Engine) -> None:
    """Let the time pass after which another relay goes on."""
    with database.begin() as connection:
        connection.execute(sql("UPDATE pagemill_outbox SET recorded_at = '2020-01-01 00:00:00.000000+00:00'"))


Open = Callable[[Engine], Any]


@contextmanager
def driver_connection(database: Engine) -> Iterator[Any]:
    """Give a connection of the driver's own, in a transaction that the caller ends."""
    if database.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(database.url.database))) as connection:
            yield connection
    else:
        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with closing(psycopg.connect(url)) as connection:
            yield connection


@contextmanager
def core_connection(database: Engine) -> Iterator[Any]:
    with database.connect() as connection:
        yield connection


@contextmanager
def orm_session(database: Engine) -> Iterator[Any]:
    with Session(database) as session:
        yield session


@pytest.mark.parametrize("opened", [driver_connection, core_connection, orm_session])
@pytest.mark.parametrize("commits", [True, False])
def test_job_exists_if_and_only_if_the_transaction_commits(
    database: Engine, store: JobStore, connection: redis.Redis, opened: Open, commits: bool
) -> None:
    with opened(database) as app:
        job_id = outbox.add(app, {"prompt": "Why?", "batch_id": "night", "tenant": "acme"}, queue="bulk")
        app.commit() if commits else app.rollback()
    assert relay_of(store, connection).run() == int(commits)
    assert waiting(connection, "bulk") == [job_id] * commits
    assert store.outbox_status() == EMPTY
    make_flow(connection, store, queues=("bulk",)).run(burst=True)
    job = store.job(job_id)
    if not commits:
        assert job is None
        return
    assert job is not None
    assert (job.state, job.tenant, job.batch_id, job.queue) == (JobState.DONE, "acme", "night", "bulk")


def insert_plainly(database: Engine, *payloads: str) -> None:
    with database.begin() as connection:
        for payload in payloads:
            connection.execute(sql("INSERT INTO pagemill_outbox (payload) VALUES (:payload)"), {"payload": payload})


def test_plain_sql_needs_the_payload_alone(database: Engine, store: JobStore, connection: redis.Redis) -> None:
    insert_plainly(database, '{"prompt": "one"}', '{"prompt": "two"}')
    assert store.outbox_status().num_waiting == 2
    make_flow(connection, store).run(burst=True)  # a worker empties the outbox itself
    assert store.outbox_status() == EMPTY
    with database.connect() as reader:
        rows = reader.execute(sql("SELECT id, state, payload FROM jobs ORDER BY enqueued_at")).all()
    assert [(row.state, json.loads(row.payload)["prompt"]) for row in rows] == [("done", "one"), ("done", "two")]
    assert all(len(row.id) == 32 for row in rows)


BAD = {
    "not json": "payload: is not JSON",
    "[1]": "payload: must be a JSON object, not list",
    '{"prompt": "x", "max_tokens": -1}': "max_tokens: input should be greater than",
    '{"prompt": "x", "colour": "red"}': "colour: unknown field",
    "[" * 100_000: "payload: is not JSON",
}


def test_bad_rows_are_dead_letters_with_the_reason_and_hold_nothing_up(
    database: Engine, store: JobStore, connection: redis.Redis
) -> None:
    insert_plainly(database, *BAD, '{"prompt": "fine"}')
    with database.begin() as app:
        columns = "INSERT INTO pagemill_outbox (job_id, queue, payload) VALUES "
        app.execute(sql(columns + """('a b', 'default', '{}'), ('c', 'no such/queue', '{"prompt": "x"}')"""))
    assert relay_of(store, connection).run() == 1
    assert store.outbox_status() == EMPTY
    assert len(waiting(connection)) == 1
    with database.connect() as reader:
        rows = reader.execute(sql("SELECT payload, error_code, error_message FROM jobs WHERE state = 'dead'")).all()
    told = {row.payload: row.error_message for row in rows}
    assert len(rows) == len(BAD) + 2
    assert {row.error_code for row in rows} == {"invalid_job"}
    for payload, reason in BAD.items():
        assert told[payload].lower().startswith(f"from the outbox: {reason.lower()}")
    assert told["{}"].startswith("from the outbox: job_id: must be 1 to 128 letters")
    assert told['{"prompt": "x"}'].startswith("from the outbox: queue: must be up to 128 letters")


def test_bad_row_does_not_touch_the_job_whose_id_it_names(
    database: Engine, store: JobStore, connection: redis.Redis
) -> None:
    with database.begin() as app:
        outbox.add(app, "fine", job_id="order-1")
    relay_of(store, connection).run()
    with database.begin() as app:
        app.execute(sql("INSERT INTO pagemill_outbox (job_id, payload) VALUES ('order-1', 'junk')"))
    relay_of(store, connection).run()
    assert store.states(["order-1"]) == {"order-1": JobState.QUEUED}
    assert [count.jobs for count in store.state_counts() if count.state is JobState.DEAD] == [1]


def test_job_that_is_added_twice_is_there_once(database: Engine, store: JobStore, connection: redis.Redis) -> None:
    for _ in range(2):
        with database.begin() as app:
            outbox.add(app, "fine", job_id="order-1")
            outbox.add(app, "fine", job_id="order-1")
        relay_of(store, connection).run()
    assert waiting(connection) == ["order-1"]


@pytest.mark.parametrize("point", ["outbox_recorded", "outbox_queued"])
def test_relay_killed_between_its_steps_leaves_each_job_once(
    database_url: str, database: Engine, store: JobStore, connection: redis.Redis, embedded_data_dir: Path, point: str
) -> None:
    insert_plainly(database, *(f'{{"prompt": "job {number}"}}' for number in range(7)))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    settings = {
        "PYTHONPATH": str(ROOT),
        "PAGEMILL_REDIS_URL": embedded_url(embedded_data_dir),
        "PAGEMILL_DATABASE_URL": database_url,
        "PAGEMILL_FAILPOINTS": f"{point}=kill",
    }
    command = [sys.executable, "-c", PROGRAM, "outbox", "relay"]
    killed = subprocess.run(command, env=environ | settings, capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    assert store.outbox_status().num_recorded == 7
    assert relay_of(store, connection).run() == 0  # it may still be at it
    settle_redo(database)
    assert relay_of(store, connection).run() == 7
    assert store.outbox_status() == EMPTY
    assert len(set(waiting(connection))) == len(waiting(connection)) == 7
    make_flow(connection, store).run(burst=True)
    assert [(count.state, count.jobs) for count in store.state_counts()] == [(JobState.DONE, 7)]


def test_relays_at_once_move_each_of_a_thousand_rows_once(
    database: Engine, store: JobStore, connection: redis.Redis
) -> None:
    with database.begin() as app:
        ids = [outbox.add(app, f"job {number}") for number in range(1000)]
    moved: list[int] = []
    relays = [threading.Thread(target=lambda: moved.append(relay_of(store, connection).run())) for _ in range(3)]
    for relay in relays:
        relay.start()
    for relay in relays:
        relay.join()
    assert sum(moved) == 1000
    assert sorted(waiting(connection)) == sorted(ids)
    assert store.outbox_status() == EMPTY


def test_one_relay_keeps_the_order(database: Engine, store: JobStore, connection: redis.Redis) -> None:
    with database.begin() as app:
        ids = [outbox.add(app, f"job {number}") for number in range(PAGE_ROWS + 3)]
    relay_of(store, connection).run()
    assert waiting(connection) == ids


def test_redis_that_is_down_loses_nothing(database: Engine, store: JobStore, connection: redis.Redis) -> None:
    insert_plainly(database, '{"prompt": "one"}')
    with pytest.raises(ServiceUnavailable):
        relay_of(store, connection, "outbox_recorded=unavailable").run()
    assert store.outbox_status().num_recorded == 1
    settle_redo(database)
    assert relay_of(store, connection).run() == 1
    assert len(waiting(connection)) == 1


def test_what_is_no_job_is_refused_before_the_database(database: Engine) -> None:
    with database.connect() as app:
        with pytest.raises(InvalidJob, match="prompt: is empty"):
            outbox.add(app, {"prompt": ""})
        with pytest.raises(InvalidJob, match="queue: must be up to 128"):
            outbox.add(app, "x", queue="a/b")
        with pytest.raises(InvalidJob, match="job_id: must be 1 to 128"):
            outbox.add(app, "x", job_id="a b")
        assert app.execute(sql("SELECT count(*) FROM pagemill_outbox")).scalar() == 0
    with pytest.raises(PagemillError, match="connection: object is none of psycopg's"):
        outbox.add(object(), "x")
