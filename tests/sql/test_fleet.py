"""Workers' rows, and the column types that both databases share."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError, StatementError

from tests.sql.builders import after, claim_of, worker_of
from worker.sql.database import reading, writing
from worker.sql.fleet import WorkerCounters, WorkerDetail
from worker.sql.store import JobStore
from worker.sql.tables import BatchRow, JobRow, storable


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = after(0)

    def __call__(self) -> datetime:
        return self.now


def test_life_of_a_worker(database: Engine) -> None:
    clock = Clock()
    store = JobStore(database, clock=clock)
    record = worker_of("w1", kv_dtype="int8", kv_host_blocks=500, longest_sequence=2**33)
    counters = WorkerCounters(3, 1, 4_000, 500, 2**40, kv_blocks_out=2**40, kv_blocks_back=7)
    store.register_worker(record)
    assert store.workers() == (WorkerDetail(record, WorkerCounters(), record.started_at, None, None),)
    clock.now = after(5)
    store.heartbeat_worker("w1", counters, timedelta(seconds=2))
    assert store.workers() == (WorkerDetail(record, counters, after(5), after(3), None),)
    for clock.now in (after(9), after(99)):
        store.stop_worker("w1")
    assert store.workers() == (WorkerDetail(record, counters, after(5), after(3), after(9)),)


def test_worker_of_the_same_name_starts_anew(store: JobStore) -> None:
    store.register_worker(worker_of("w1"))
    store.heartbeat_worker("w1", WorkerCounters(jobs_done=3), timedelta())
    store.stop_worker("w1")
    again = worker_of("w1", pid=4712, started_at=after(60))
    store.register_worker(again)
    assert store.workers() == (WorkerDetail(again, WorkerCounters(), after(60), None, None),)


def test_latest_worker_comes_first_and_strangers_change_nothing(store: JobStore) -> None:
    store.register_worker(worker_of("w1"))
    store.register_worker(worker_of("w2", started_at=after(1)))
    before = store.workers()
    assert [worker.record.name for worker in before] == ["w2", "w1"]
    store.heartbeat_worker("unknown", WorkerCounters(jobs_done=1), timedelta())
    store.stop_worker("unknown")
    assert store.workers() == before


def test_times_come_back_in_utc(database: Engine) -> None:
    elsewhere = datetime(2026, 3, 29, 2, 30, 0, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    with writing(database) as connection:
        connection.execute(insert(BatchRow), [{"id": "a", "size": None, "created_at": elsewhere}])
    with reading(database) as connection:
        stored = connection.scalars(select(BatchRow.created_at).where(BatchRow.created_at == elsewhere)).one()
    assert stored == elsewhere
    assert stored.utcoffset() == timedelta(0)


def test_naive_time_is_refused(database: Engine) -> None:
    naive = after(0).replace(tzinfo=None)
    with pytest.raises(StatementError, match="has no time zone"), writing(database) as connection:
        connection.execute(insert(BatchRow), [{"id": "a", "size": None, "created_at": naive}])


@pytest.mark.parametrize("changes", [{"epoch": -1}, {"attempt_count": -1}, {"batch_id": "unknown"}, {"queue": None}])
def test_row_that_makes_no_sense_is_refused(database: Engine, store: JobStore, changes: dict[str, object]) -> None:
    store.begin_attempts([claim_of("a")], "w1")
    with reading(database) as connection:
        row = dict(connection.execute(select(JobRow.__table__)).mappings().one())
    with pytest.raises(IntegrityError), writing(database) as connection:
        connection.execute(insert(JobRow), [{**row, "id": "b", **changes}])


def test_state_outside_the_vocabulary_is_refused(database: Engine, store: JobStore) -> None:
    store.begin_attempts([claim_of("a")], "w1")
    for table in ("jobs", "attempts"):
        with pytest.raises(IntegrityError, match=f"ck_{table}_state"), writing(database) as connection:
            connection.exec_driver_sql(f"UPDATE {table} SET state = 'paused'")


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("plain", "plain"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("🙂 é\ufffd", "🙂 é\ufffd"),
        ("é\x00", "é\ufffd"),
    ],
)
def test_storable_text(text: str, stored: str) -> None:
    assert storable(text) == stored


def test_records_are_values() -> None:
    assert replace(worker_of("w1"), name="w2") == worker_of("w2")
