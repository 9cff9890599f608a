"""Runs of schedules that are purged, and those that must stay."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine, func, select

from tests.cron.conftest import schedule_of
from tests.sql.builders import START, after, claim_of, outcome_of
from worker.cron.records import RunState, Schedule
from worker.cron.run_store import RunStore
from worker.cron.schedule_store import ScheduleStore
from worker.running.tidying import TidyChore
from worker.settings_model import Settings
from worker.sql.database import reading
from worker.sql.retention import Purged, Purger, PurgeScope
from worker.sql.store import JobStore
from worker.sql.tables import ScheduleRow, ScheduleRunRow, utc_now


def fire(database: Engine, schedule: Schedule, seconds: float, *, ends: bool = True) -> str:
    """Write a run that was asked for some time after START; return the name of its batch."""
    now = after(seconds)
    run = ScheduleStore(database).open_manual(schedule, "w", now)
    if ends:
        RunStore(database).end(run, RunState.SUBMITTED, now)
    assert run.batch_id is not None
    return run.batch_id


def count(database: Engine, table: type) -> int:
    with reading(database) as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def test_old_runs_go_once_all_their_jobs_have_ended(database: Engine) -> None:
    schedules, store = ScheduleStore(database), JobStore(database)
    kept, removed = schedule_of("kept"), schedule_of("removed")
    schedules.add(kept)
    schedules.add(removed)
    batch_id = fire(database, kept, 0)
    fire(database, kept, 60)
    fire(database, kept, 120, ends=False)
    fire(database, kept, 7200)
    fire(database, removed, 0)
    schedules.remove("removed", after(30))
    claim = claim_of("still-running", batch_id=batch_id)
    store.begin_attempts([claim], "w")
    purger, scope = Purger(database), PurgeScope(after(3600))
    assert purger.count(replace(scope, tenant="default"), None).runs == 0
    assert purger.count(scope, None).runs == 2
    assert purger.run(scope) == Purged(0, 0, 0, runs=2)
    assert count(database, ScheduleRunRow) == 3
    assert [schedule.name for schedule in schedules.schedules(removed=True)] == ["kept"]
    store.finish_attempts([outcome_of(claim, at_s=4000)])
    assert purger.run_schedules(scope.before) == 1
    assert count(database, ScheduleRunRow) == 2


def test_workers_purge_runs_of_long_ago(database: Engine) -> None:
    schedule = schedule_of()
    ScheduleStore(database).add(schedule)
    fire(database, schedule, 0)
    fire(database, schedule, (utc_now() - START) / timedelta(seconds=1))
    TidyChore(database, Settings(data_dir=Path("unused"), schedule_retention_days=5), stopped=lambda: False).run()
    assert (count(database, ScheduleRunRow), count(database, ScheduleRow)) == (1, 1)
