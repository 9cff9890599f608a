"""Scheduler processes that are killed at each point of a slot's way; whoever comes next makes one set of jobs of it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from rq import Queue

from tests.cron.conftest import Schedulers, TestClock, WriteJobs, schedule_of
from worker.cron.actions import ActionKind, dump_action, job_id, make_action
from worker.cron.leader import LEASE
from worker.cron.records import RunState
from worker.queue.embedded import embedded_url
from worker.records import JobState
from worker.running.failpoints import Point
from worker.sql.database import open_database

PROGRAM = "from worker.cli.main import main; main()"
ROOT = Path(__file__).resolve().parents[2]
COUNT = 1200  # three chunks
WAIT_SECONDS = 120.0


@pytest.fixture
def environ(embedded_data_dir: Path, tmp_path: Path, migrated_sqlite_file: Path) -> dict[str, str]:
    """The variables of a scheduler process on the emptied queue and an SQLite database of its own."""
    shutil.copy(migrated_sqlite_file, tmp_path)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    return {
        **inherited,
        "PYTHONPATH": str(ROOT),
        "PAGEMILL_REDIS_URL": embedded_url(embedded_data_dir),
        "PAGEMILL_DATABASE_URL": f"sqlite:///{tmp_path}/pagemill.db",
        "PAGEMILL_DATA_DIR": str(tmp_path / "data"),
    }


def start_scheduler(environ: Mapping[str, str], failpoints: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "cron", "scheduler"],
        env={**environ, "PAGEMILL_FAILPOINTS": failpoints},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("failpoint", "num_recorded", "num_queued"),
    [
        (f"{Point.SLOT_DUE}=kill", 0, 0),
        (f"{Point.RUN_OPENED}=kill", 0, 0),
        (f"{Point.RUN_RECORDED}=kill@2", 1000, 500),
        (f"{Point.RUN_QUEUED}=kill@2", 1000, 1000),
        (f"{Point.RUN_ENDED}=kill", COUNT, COUNT),
    ],
)
def test_killed_scheduler_is_followed_by_one_that_goes_on(
    connection: redis.Redis,
    environ: dict[str, str],
    write_jobs: WriteJobs,
    failpoint: str,
    num_recorded: int,
    num_queued: int,
) -> None:
    database = open_database(environ["PAGEMILL_DATABASE_URL"])
    schedulers = Schedulers(database, connection, TestClock(datetime.now(UTC) + 2 * LEASE))
    action = dump_action(make_action(ActionKind.JSONL, path=str(write_jobs(COUNT))))
    made = datetime.now(UTC) - timedelta(seconds=90)
    schedule = schedule_of(expression="* * * * *", at=made, action=action)
    assert schedule.next_slot_at is not None
    slot = schedule.next_slot_at
    schedulers.add(replace(schedule, ends_at=slot))  # one slot, which has come
    with start_scheduler(environ, failpoint) as killed:
        _, log = killed.communicate(timeout=WAIT_SECONDS)
    assert killed.returncode == -signal.SIGKILL, log
    found = schedulers.history()
    assert len(found) == (failpoint != f"{Point.SLOT_DUE}=kill")
    assert sum(detail.jobs.get(JobState.QUEUED, 0) for detail in found) == num_recorded
    assert len(Queue("default", connection=connection).job_ids) == num_queued

    schedulers.tick(schedulers.scheduler("next"))
    schedulers.tick(schedulers.scheduler("another"))
    (detail,) = schedulers.history()
    assert (detail.run.state, detail.run.slot_at) == (RunState.SUBMITTED, slot)
    assert (detail.run.num_submitted, detail.jobs) == (COUNT, {JobState.QUEUED: COUNT})
    assert Queue("default", connection=connection).job_ids == [job_id(detail.run.id, index) for index in range(COUNT)]
    database.dispose()


def test_signal_ends_a_scheduler_in_order(connection: redis.Redis, environ: dict[str, str]) -> None:
    with start_scheduler(environ) as scheduler:
        assert scheduler.stderr is not None
        assert "runs" in scheduler.stderr.readline()
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(WAIT_SECONDS) == 0
        assert "Traceback" not in scheduler.stderr.read()
