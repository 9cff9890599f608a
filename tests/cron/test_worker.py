"""A worker as a scheduler: from a slot to a job that is done."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
import redis
from sqlalchemy import Engine

from tests.cron.conftest import schedule_of
from tests.worker.fakes import eventually, make_flow, running
from worker.cron.history import read_history
from worker.cron.leader import current_leader
from worker.cron.records import OverlapPolicy, RunState
from worker.cron.schedule_store import ScheduleStore
from worker.records import JobState
from worker.sql.store import JobStore


def test_worker_fires_what_is_due_and_hands_over_at_its_end(
    connection: redis.Redis, database: Engine, store: JobStore
) -> None:
    made = datetime.now(UTC) - timedelta(seconds=90)
    schedule = schedule_of(at=made, overlap=OverlapPolicy.SKIP, ends_at=made + timedelta(seconds=60))
    ScheduleStore(database).add(schedule)
    with running(make_flow(connection, store, name="worker-2")) as worker:
        eventually(lambda: [d.jobs for d in read_history(database, "nightly", 10)] == [{JobState.DONE: 1}])
        leader = current_leader(database)
        assert leader is not None
        assert leader.holder == "worker-2"
        worker.stop()
    (detail,) = read_history(database, "nightly", 10)
    assert (detail.run.slot_at, detail.run.state) == (schedule.next_slot_at, RunState.SUBMITTED)
    leader = current_leader(database)
    assert leader is not None
    assert leader.expires_at <= datetime.now(UTC)


@pytest.mark.parametrize("is_scheduler", [True, False])
def test_worker_may_be_told_to_leave_it_to_others(
    connection: redis.Redis, sqlite_store: JobStore, is_scheduler: bool
) -> None:
    with running(make_flow(connection, sqlite_store, scheduler=is_scheduler)) as worker:
        eventually(lambda: "pagemill-reconcile" in thread_names())
        eventually(lambda: ("pagemill-schedules" in thread_names()) == is_scheduler)
        worker.stop()


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
