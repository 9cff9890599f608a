"""Freezes what this version leaves in a database, and what it says to one: run it when a revision is released.

    python tests/sql/released/freeze.py

writes, for the latest revision, NNNN.sqlite.sql and NNNN.postgresql.sql (tables and rows as this code wrote them; needs
`pg_dump`) and NNNN.sqlite.json and NNNN.postgresql.json (the statements of an old worker's and producer's life, to be
said to later databases). A file that was written once is never changed: it stands for programs that are out there.
"""

import json
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg.types.json import Json
from sqlalchemy import Engine, event

from scripts.fault_table.postgresql import connect_to_server, create_database, drop_database
from tests.sql.builders import START, after, claim_of, dead_of, outcome_of, stats_of, submitted_of, worker_of
from tests.sql.released.other_tables import write_all
from worker.queue.submission import QueueRecord
from worker.records import AttemptState, Retry
from worker.sql import schema
from worker.sql.database import open_database
from worker.sql.dead_letters import DeadFilter
from worker.sql.fleet import WorkerCounters
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore

FOLDER = Path(__file__).resolve().parent
EPOCH = 1_777_622_400_000_000  # microseconds, as Redis's clock gives them
ODD_TEXT = "Zürich 東京 👩‍🚀 <b> '; DROP TABLE jobs; -- =cmd() \x1b[31m NUL \x00 and half a pair \ud83d"
PSQL_ONLY = ("--", "\\", "SET ", "SELECT pg_catalog.set_config")  # of pg_dump's lines; needless, or not SQL

Statements = list[list[Any]]  # each an SQL text and its parameters


class Recorder:
    """Keeps every statement that goes to a database, by the transaction that it was in."""

    def __init__(self) -> None:
        self.steps: list[Statements] = []

    def listen(self, database: Engine) -> None:
        """Keep what goes through SQLAlchemy."""

        @event.listens_for(database, "begin")
        def begin(connection: object) -> None:
            self.steps.append([])

        @event.listens_for(database, "before_cursor_execute")
        def keep(
            connection: object, cursor: object, statement: str, parameters: Any, context: object, executemany: bool
        ) -> None:
            if not statement.startswith(("PRAGMA", "BEGIN")) and self.steps:
                self.steps[-1].append([statement, encode(parameters)])

    @contextmanager
    def producing(self, url: str) -> Iterator[Any]:
        """Give a recorder of submitted jobs, and keep what it says through the driver."""
        with opened_recorder(url) as recorder:
            write = recorder._database.write

            def keep(statements: Any) -> None:
                self.steps.append([[statement, encode(rows)] for statement, rows in statements])
                write(statements)

            recorder._database.write = keep  # type: ignore[method-assign]
            yield recorder


def encode(value: Any) -> Any:
    """Return what JSON can hold of a statement's parameters."""
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if isinstance(value, Json):
        return {"json": value.obj}
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, list | tuple) else value


def live(url: str, recorder: Recorder) -> None:
    """Submit, run and end jobs in all ways that there are, with a worker that is still at it in the end."""
    database = open_database(url)
    database.connect().close()
    recorder.listen(database)
    store = JobStore(database, clock=lambda: after(500))
    store.register_worker(worker_of("w-stopped"))
    running = worker_of("w-running", started_at=after(5), kv_dtype="int8", kv_host_blocks=64, longest_sequence=8192)
    store.register_worker(running)
    submit(url, recorder)
    run(store)
    write_all(database, store, EPOCH + 100)
    read(store)
    store.heartbeat_worker("w-running", WorkerCounters(3, 2, 400, 50, 160), timedelta(seconds=0.5))
    store.stop_worker("w-stopped")
    database.dispose()


def submit(url: str, recorder: Recorder) -> None:
    """Record jobs as a producer does."""
    payloads: dict[str, dict[str, Any]] = {
        "queued": {"prompt": "later", "custom_id": "row 7", "batch_id": "night", "batch_size": 3},
        "queued-with-deadline": {"prompt": "soon", "deadline": after(3600).isoformat(), "tenant": "acme"},
    }
    records = [
        QueueRecord(job_id, {"schema_version": 1, **payload}, json.dumps(payload), START)
        for job_id, payload in payloads.items()
    ]
    with recorder.producing(url) as producer:
        producer.record("bulk", records)


def run(store: JobStore) -> None:
    """Begin and finish attempts."""
    done = claim_of("done", EPOCH, batch_id="night", batch_size=3, metadata={"page": "1"}, system="Be brief.")
    odd = claim_of("odd", EPOCH, custom_id="ü/1", prompt="日本語 🎌", tenant="acme", model="smollm2")
    failed, cancelled = claim_of("failed", EPOCH), claim_of("cancelled", EPOCH)
    running = claim_of("running", EPOCH, deadline=after(7200), max_tokens=9)
    delayed, handed_back = claim_of("delayed", EPOCH), claim_of("handed-back", EPOCH)
    lost = claim_of("lost-once", EPOCH)
    claims = [done, odd, failed, cancelled, running, delayed, handed_back, lost]
    store.begin_attempts(claims, "w-stopped")
    again = replace(lost, epoch=EPOCH + 9, execution_id="again", claimed_at=after(60))
    store.begin_attempts([again], "w-running")
    store.finish_attempts(
        [
            outcome_of(done),
            outcome_of(
                odd,
                text=ODD_TEXT,
                token_ids=(0, 2**31 - 1),
                finish_reason="stop_string",
                stats=stats_of(ttft_ms=None, itl_mean_ms=None, itl_p99_ms=None, preemptions=2),
            ),
            outcome_of(failed, AttemptState.FAILED, error_code="context_length", error_message="5000 > 4096"),
            outcome_of(cancelled, AttemptState.CANCELLED, text="half an", finish_reason="cancelled"),
            outcome_of(delayed, AttemptState.FAILED, retry=Retry(after(900), 1)),
            outcome_of(handed_back, AttemptState.REQUEUED, error_code=None, error_message=None),
            outcome_of(lost),
        ]
    )
    store.finish_attempts([outcome_of(again, at_s=70)])
    store.record_dead([dead_of("dead", raw='{"func": "os.system \\u0000"}'), dead_of("dead-late", enqueued_at=START)])
    store.record_cancelled([submitted_of("cancelled-early")])
    store.mark_retried(["failed"])


def read(store: JobStore) -> None:
    """Ask what a worker and the commands ask."""
    ids = ("done", "odd", "running", "dead")
    for job_id in (*ids, "no such job"):
        store.job(job_id)
    store.states(ids)
    store.results(ids)
    store.state_counts()
    store.batch("night")
    store.workers()
    store.worker_records(["w-running"])
    store.dead_jobs(DeadFilter())
    store.count_unfinished()
    store.unfinished(None, after(10_000), 10)
    store.unfinished_jobs("night", "", 10)


def freeze() -> None:
    """Write the files of the latest revision."""
    revision = schema.head()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/pagemill.db"
        write(f"{revision}.sqlite.json", statements_of(url))
        with closing(sqlite3.connect(f"{folder}/pagemill.db")) as connection:
            write(f"{revision}.sqlite.sql", "\n".join(connection.iterdump()) + "\n")
    server, name = connect_to_server(), "pagemill_freeze"
    url = create_database(server, name)
    try:
        write(f"{revision}.postgresql.json", statements_of(url))
        command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url.replace("+psycopg", "")]
        dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        kept = [line for line in dump if line and not line.startswith(PSQL_ONLY)]
        write(f"{revision}.postgresql.sql", "\n".join(kept) + "\n")
    finally:
        drop_database(server, name)


def statements_of(url: str) -> str:
    """Live a life in an empty database; return its statements as JSON."""
    schema.upgrade(url)
    recorder = Recorder()
    live(url, recorder)
    lines = (json.dumps(statements) for statements in recorder.steps if statements)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def write(name: str, text: str) -> None:
    """Write a file that is not there yet."""
    with (FOLDER / name).open("x", encoding="utf-8", errors="strict") as file:
        file.write(text)


if __name__ == "__main__":
    freeze()
