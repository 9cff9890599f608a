"""Fixtures of the schedules' tests: schedulers on a real queue and a real database, with a clock that tests set."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import Engine

from worker.cron.actions import ActionKind, dump_action, make_action
from worker.cron.history import RunDetail, read_history
from worker.cron.planning import first_slot
from worker.cron.records import MissedPolicy, OverlapPolicy, Schedule
from worker.cron.schedule_store import ScheduleStore
from worker.cron.scheduler import Scheduler
from worker.queue.connection import connect
from worker.running.failpoints import Failpoints
from worker.settings_model import Settings
from worker.sql.database import open_database
from worker.sql.store import JobStore

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def connection(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


@dataclass
class TestClock:
    """A clock that stands still until it is moved."""

    __test__ = False
    time: datetime = START

    def __call__(self) -> datetime:
        return self.time

    def move(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


def schedule_of(
    name: str = "nightly", expression: str = "* * * * *", *, at: datetime = START, **changes: Any
) -> Schedule:
    """A schedule that was made `at` some time, of one prompt unless an action is given."""
    fields: dict[str, Any] = {
        "id": f"id-{name}",
        "name": name,
        "expression": expression,
        "time_zone": "UTC",
        "action": dump_action(make_action(ActionKind.PROMPT, job={"prompt": "Good night."})),
        "queue": "default",
        "tenant": "default",
        "missed": MissedPolicy.ONCE,
        "overlap": OverlapPolicy.ALLOW,
        "grace_seconds": 300.0,
        "starts_at": None,
        "ends_at": None,
        "created_at": at,
        "paused_at": None,
        "removed_at": None,
        "next_slot_at": None,
        **changes,
    }
    schedule = Schedule(**fields)
    return Schedule(**{**fields, "next_slot_at": fields["next_slot_at"] or first_slot(schedule, at)})


@dataclass
class Schedulers:
    """Schedulers of one queue and one database."""

    database: Engine
    connection: redis.Redis
    clock: TestClock = field(default_factory=TestClock)
    is_stopped: bool = False

    @property
    def schedules(self) -> ScheduleStore:
        return ScheduleStore(self.database)

    def scheduler(self, name: str = "scheduler-1", connection: redis.Redis | None = None, **settings: Any) -> Scheduler:
        """Return a scheduler that has not ticked yet."""
        return Scheduler(
            name,
            self.database,
            connection or self.connection,
            Settings(data_dir=Path("unused"), **settings),
            Failpoints(),
            stopped=lambda: self.is_stopped,
            clock=self.clock,
        )

    def tick(self, scheduler: Scheduler) -> None:
        """Let a scheduler look once, and wait for the runs that it carries out."""
        scheduler.tick()
        scheduler.join(30.0)

    def add(self, schedule: Schedule) -> Schedule:
        self.schedules.add(schedule)
        return schedule

    def history(self) -> tuple[RunDetail, ...]:
        """Return all runs, the earliest first."""
        return read_history(self.database, None, 10_000)[::-1]

    def states(self) -> list[tuple[str, str]]:
        """Return slot and state of all runs, the earliest first; the reason where one was skipped."""
        return [(f"{d.run.slot_at:%H:%M}", d.run.skip_reason or d.run.state) for d in self.history()]


@pytest.fixture
def schedulers(database: Engine, connection: redis.Redis) -> Schedulers:
    """Schedulers on an empty queue and an empty database; the test runs once on each kind of database."""
    return Schedulers(database, connection)


WriteJobs = Callable[[int], Path]


@pytest.fixture
def write_jobs(tmp_path: Path) -> WriteJobs:
    """Write a file of as many jobs; return its path."""

    def write(count: int) -> Path:
        path = tmp_path / "jobs.jsonl"
        path.write_text(
            "".join(f'{{"prompt": "Question {number}", "custom_id": "{number}"}}\n' for number in range(count))
        )
        return path

    return write


@pytest.fixture
def sqlite_store(tmp_path: Path, migrated_sqlite_file: Path) -> Iterator[JobStore]:
    """A job store on an SQLite database without jobs."""
    database = open_database(f"sqlite:///{shutil.copy(migrated_sqlite_file, tmp_path)}")
    yield JobStore(database)
    database.dispose()
