"""Recording submitted jobs through the drivers: the rows are those that SQLAlchemy writes and reads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.sql.builders import START, after, claim_of, dead_of, outcome_of
from worker.errors import ConfigurationError, ServiceUnavailable
from worker.jobs import dump_job
from worker.queue.submission import QueueRecord
from worker.records import AttemptState, Claim, JobState
from worker.sql.database import open_database, reading, writing
from worker.sql.recording import SqlRecorder, opened_recorder
from worker.sql.store import JobStore


@pytest.fixture
def recorder(database_url: str) -> Iterator[SqlRecorder]:
    with opened_recorder(database_url) as recorder:
        yield recorder


def record_of(claim: Claim) -> QueueRecord:
    """The record of a job that will be claimed so."""
    return QueueRecord(claim.job_id, dump_job(claim.job), claim.payload_json, claim.enqueued_at)


FULL: dict[str, Any] = {
    "prompt": "Où?\u2028 😀",
    "tenant": "acme",
    "model": "m",
    "batch_id": "night",
    "batch_size": 2,
    "custom_id": "c-1",
}


def test_a_recorded_job_waits_in_sql(recorder: SqlRecorder, store: JobStore) -> None:
    claim = claim_of("a", **FULL)
    recorder.record("bulk", [record_of(claim), record_of(claim_of("b"))])
    job = store.job("a")
    assert job is not None
    assert (job.state, job.epoch, job.attempt_count, job.attempts) == (JobState.QUEUED, 0, 0, ())
    assert (job.queue, job.tenant, job.model, job.batch_id, job.custom_id) == ("bulk", "acme", "m", "night", "c-1")
    assert (job.payload, job.enqueued_at, job.ended_at) == (claim.payload_json, START, None)
    batch = store.batch("night")
    assert batch is not None
    assert (batch.size, batch.created_at, batch.states) == (2, START, {JobState.QUEUED: 1})


def test_its_columns_are_as_sqlalchemy_writes_them(recorder: SqlRecorder, database_url: str, store: JobStore) -> None:
    """Down to the storage: SQLite keeps times as text, which must compare."""
    claim = claim_of("recorded", **FULL)
    recorder.record("default", [record_of(claim)])
    other = claim_of("begun", **FULL)
    store.begin_attempts([other], "w")
    store.finish_attempts([outcome_of(other, AttemptState.REQUEUED)])
    database = open_database(database_url)
    with reading(database) as connection:
        columns = "queue, tenant, model, batch_id, custom_id, state, enqueued_at"
        rows = connection.execute(text(f"SELECT {columns} FROM jobs")).all()
    database.dispose()
    assert len(rows) == 2
    assert tuple(rows[0]) == tuple(rows[1])


def test_recording_again_changes_nothing(recorder: SqlRecorder, store: JobStore) -> None:
    claim = claim_of("a", epoch=5)
    recorder.record("default", [record_of(claim)])
    store.begin_attempts([claim], "w")
    begun = store.job("a")
    recorder.record("default", [record_of(claim)])
    assert store.job("a") == begun
    store.finish_attempts([outcome_of(claim)])
    done = store.job("a")
    recorder.record("elsewhere", [replace(record_of(claim), enqueued_at=after(60))])
    assert store.job("a") == done


def test_the_first_attempt_takes_over_what_was_recorded(recorder: SqlRecorder, store: JobStore) -> None:
    claim = claim_of("a", epoch=5, batch_id="night", batch_size=1)
    recorder.record("default", [record_of(claim)])
    late = replace(claim, enqueued_at=after(5))  # a queue record that was written later
    begun = store.begin_attempts([late], "w")
    assert (begun.terminal, begun.stale) == ({}, frozenset())
    job = store.job("a")
    assert job is not None
    assert (job.state, job.epoch, job.attempt_count, job.enqueued_at) == (JobState.RUNNING, 5, 1, START)
    assert len(job.attempts) == 1


def test_a_batch_gets_the_size_that_it_lacks(recorder: SqlRecorder, store: JobStore) -> None:
    for job_id, size in (("a", None), ("b", 7), ("c", 9)):
        recorder.record("default", [record_of(claim_of(job_id, batch_id="night", batch_size=size))])
    batch = store.batch("night")
    assert batch is not None
    assert batch.size == 7


def test_a_dead_record_takes_the_place_of_a_recorded_job(recorder: SqlRecorder, store: JobStore) -> None:
    recorder.record("default", [record_of(claim_of("a"))])
    store.record_dead([dead_of("a")])
    assert store.states(["a"]) == {"a": JobState.DEAD}


def test_all_of_a_call_or_nothing_is_recorded(recorder: SqlRecorder, store: JobStore) -> None:
    broken = QueueRecord("b", {"prompt": "x", "deadline": "when it suits"}, "{}", START)
    with pytest.raises(ValueError, match="Invalid isoformat"):
        recorder.record("default", [record_of(claim_of("a")), broken])
    assert store.states(["a", "b"]) == {}


def test_threads_may_share_a_recorder(recorder: SqlRecorder, store: JobStore) -> None:
    chunks = [[record_of(claim_of(f"{chunk}-{place}")) for place in range(20)] for chunk in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda chunk: recorder.record("default", chunk), chunks))
    assert store.count_unfinished().number == 240


def test_a_database_without_tables_is_named(empty_database_url: str) -> None:
    with (
        opened_recorder(empty_database_url) as recorder,
        pytest.raises(ConfigurationError, match="run `pagemill db upgrade`"),
    ):
        recorder.record("default", [record_of(claim_of("a"))])


@pytest.mark.parametrize("url", ["mysql://host/db", "sqlite", "postgresql://host:port/db"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="database_url"), opened_recorder(url):
        pass


def test_a_server_that_is_away_is_unavailable_and_its_password_unseen() -> None:
    url = "postgresql://me:s%40cret@127.0.0.1:1/db"
    with opened_recorder(url) as recorder, pytest.raises(ServiceUnavailable) as caught:
        recorder.record("default", [record_of(claim_of("a"))])
    message = str(caught.value)
    assert message.startswith("cannot use the database at postgresql://me@127.0.0.1:1/db: ")
    assert "cret" not in message
    assert "\n" not in message


def test_a_broken_connection_is_opened_anew(migrated_postgresql_url: str) -> None:
    database = open_database(migrated_postgresql_url)
    with opened_recorder(migrated_postgresql_url) as recorder:
        recorder.record("default", [record_of(claim_of("first"))])
        with writing(database) as connection:
            others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(text(f"SELECT pg_terminate_backend(pid) {others}"))
        with pytest.raises(ServiceUnavailable):
            recorder.record("default", [record_of(claim_of("second"))])
        recorder.record("default", [record_of(claim_of("second"))])
    assert set(JobStore(database).states(["first", "second"])) == {"first", "second"}
    database.dispose()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database " * 1000)
    with opened_recorder(f"sqlite:///{tmp_path}/text.db") as recorder, pytest.raises(ServiceUnavailable):
        recorder.record("default", [record_of(claim_of("a"))])
