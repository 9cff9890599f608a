"""What a worker does for its database in between: rolling up, purging as the settings say."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.sql.builders import START, claim_of, outcome_of
from worker.records import Claim, JobState, Outcome
from worker.running.tidying import TidyChore
from worker.settings_model import Settings
from worker.sql.reporting import Reports
from worker.sql.retention import PURGED_PAYLOAD
from worker.sql.store import JobStore
from worker.sql.tables import utc_now


def ended_days_ago(claim: Claim) -> Outcome:
    """The end of a job three days ago: all hours since are rolled up."""
    return outcome_of(claim, at_s=(utc_now() - timedelta(days=3) - START).total_seconds())


@pytest.fixture
def old_job(store: JobStore) -> JobStore:
    """A job that ended three days ago."""
    claim = claim_of("old")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([ended_days_ago(claim)])
    return store


def tidy(database: Engine, **settings: Any) -> None:
    TidyChore(database, Settings(data_dir=Path("unused"), **settings), stopped=lambda: False).run()


def test_nothing_is_purged_unless_asked_for(database: Engine, old_job: JobStore) -> None:
    tidy(database)
    assert Reports(database).rolled_until() is not None
    assert old_job.states(["old"]) == {"old": JobState.DONE}


def test_texts_go_first_and_jobs_later(database: Engine, old_job: JobStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tidy(database, retention_days=36_500, text_retention_days=1)
    job = old_job.job("old")
    assert job is not None
    assert job.payload == PURGED_PAYLOAD
    tidy(database, retention_days=2)
    assert old_job.states(["old"]) == {}
    assert "purged the texts of 1 jobs that ended more than 1 days ago" in caplog.text
    assert "purged 1 jobs that ended more than 2 days ago" in caplog.text


def test_texts_that_are_gone_are_not_looked_for_again(database: Engine, old_job: JobStore) -> None:
    chore = TidyChore(database, Settings(data_dir=Path("unused"), text_retention_days=1), stopped=lambda: False)
    chore.run()
    late = claim_of("late")  # days late: no worker commits so
    old_job.begin_attempts([late], "w1")
    old_job.finish_attempts([ended_days_ago(late)])
    chore.run()
    job = old_job.job("late")
    assert job is not None
    assert job.payload != PURGED_PAYLOAD
