"""Purging: what goes, what stays, and what reports still say afterwards."""

import random
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Engine, func, select

from tests.sql.builders import START, after, claim_of, outcome_of, submitted_of
from tests.sql.history import NOW, outcomes_over_days, roll_up, store_all
from worker.records import AttemptState, Choice, JobState
from worker.sql import retention
from worker.sql.database import reading
from worker.sql.reporting import Dimension, ReportFilter, Reports
from worker.sql.retention import PURGED_PAYLOAD, Purged, Purger, PurgeScope
from worker.sql.rollups.rolling import Roller
from worker.sql.store import JobStore
from worker.sql.tables import AttemptRow, BatchRow, JobRow, JobStatsRow, ResultRow

EVERYTHING = ReportFilter()
BY = (Dimension.DAY, Dimension.QUEUE)


@pytest.fixture
def purger(database: Engine) -> Purger:
    return Purger(database, sleep=lambda seconds: None)


@pytest.fixture
def _rolled_up_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Purging rolls up to the end of the history, not to today: that is an hour after the other for months."""
    monkeypatch.setattr(retention, "Roller", partial(Roller, now=lambda: NOW))


def count(database: Engine, table: type) -> int:
    with reading(database) as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.mark.usefixtures("_rolled_up_to_now")
def test_purge_keeps_what_was_counted(
    store: JobStore, database: Engine, purger: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "IDS_PER_STATEMENT", 7)  # several chunks
    outcomes = outcomes_over_days(3, 60)
    store_all(store, outcomes)
    store.begin_attempts([claim_of("running", batch_id="night")], "w1")
    store.record_cancelled([submitted_of("waiting", batch_id="day")])
    reports = Reports(database)
    before = START + timedelta(days=6, hours=5, minutes=30)
    totals, latency = reports.totals(EVERYTHING, BY), reports.latency(EVERYTHING)
    old = [outcome for outcome in outcomes if outcome.ended_at < before]
    told: list[int] = []
    purged = purger.run(PurgeScope(before), told=told.append)
    assert (purged.jobs, purged.too_recent) == (len(old), 0)
    assert told[-1] == len(old)
    assert len(told) > 3
    assert count(database, JobRow) == len(outcomes) - len(old) + 2
    assert count(database, AttemptRow) == len(outcomes) - len(old) + 1
    assert count(database, ResultRow) == count(database, JobStatsRow) == len(outcomes) - len(old)
    assert reports.totals(EVERYTHING, BY) == totals
    rough = reports.latency(EVERYTHING)  # of few jobs, but not all of them are there
    assert {row.relative_error for row in rough} == {0.01}
    assert [(row.count, row.max) for row in rough] == [(row.count, row.max) for row in latency]
    roll_up(database, check_all=True)  # an hour whose jobs are gone is not counted again
    assert reports.totals(EVERYTHING, BY) == totals
    assert purger.run(PurgeScope(before)) == Purged(0, 0, 0)


@pytest.mark.usefixtures("_rolled_up_to_now")
def test_purge_of_a_batch_or_tenant_and_what_it_leaves(store: JobStore, database: Engine, purger: Purger) -> None:
    chance = random.Random(1)
    claims = [
        claim_of(f"{batch}-{tenant}-{number}", batch_id=batch, tenant=tenant, at_s=chance.uniform(0, 9999))
        for batch in ("night", "day")
        for tenant in ("acme", "other")
        for number in range(3)
    ]
    store.begin_attempts([*claims, claim_of("runs", batch_id="night")], "w1")
    store.finish_attempts([outcome_of(claim, at_s=10_000.0) for claim in claims])
    now = datetime.now(UTC)
    scope = PurgeScope(now, batch="day")
    assert purger.count(scope, now) == Purged(6, 0, 0)
    assert purger.run(scope) == Purged(6, 1, 0)
    with reading(database) as connection:
        assert connection.scalars(select(BatchRow.id)).all() == ["night"]
    assert purger.run(PurgeScope(now, tenant="acme")) == Purged(3, 0, 0)
    assert purger.run(PurgeScope(now)) == Purged(3, 0, 0)
    assert store.states(["runs"]) == {"runs": JobState.RUNNING}
    (totals,) = Reports(database).totals(EVERYTHING)
    assert (totals.jobs_done, totals.jobs_running) == (12, 1)


def test_job_of_an_hour_that_is_not_over_stays(store: JobStore, purger: Purger) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, at_s=(datetime.now(UTC) - START).total_seconds())])
    assert purger.run(PurgeScope(datetime.now(UTC) + timedelta(hours=1))) == Purged(0, 0, 1)
    assert store.states(["a"]) == {"a": JobState.DONE}


def test_jobs_of_the_first_hour_ever_stay(store: JobStore, purger: Purger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just after midnight, where no hour of any job is over: there is nothing to roll up, and nothing may go."""
    midnight = START.replace(hour=0, minute=0) + timedelta(days=1)
    monkeypatch.setattr(retention, "Roller", partial(Roller, now=lambda: midnight + timedelta(minutes=5)))
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, at_s=(midnight - START).total_seconds() + 60)])
    assert purger.run(PurgeScope(midnight + timedelta(hours=1))) == Purged(0, 0, 1)
    assert store.states(["a"]) == {"a": JobState.DONE}


def test_texts_go_and_figures_stay(store: JobStore, database: Engine, purger: Purger) -> None:
    done, failed, recent = (claim_of(name) for name in ("done", "failed", "recent"))
    store.begin_attempts([done, failed, recent], "w1")
    logprobs = [{"token": "It", "token_id": 5, "logprob": -0.5, "top_logprobs": []}]
    further = (Choice(1, "It is otherwise.", (5, 6, 8), "stop", logprobs),)
    ends = [outcome_of(failed, AttemptState.FAILED), outcome_of(recent, at_s=7200.0)]
    ends.append(outcome_of(done, choices=further, logprobs=logprobs))
    store.finish_attempts(ends)
    scope = PurgeScope(after(3600), texts_only=True)
    assert purger.count(scope, None).jobs == 2
    latency = Reports(database).latency(EVERYTHING)
    assert purger.run(scope) == Purged(2, 0, 0)
    job, kept = store.job("done"), store.job("recent")
    assert job is not None
    assert job.result is not None
    assert (job.payload, job.result.text, job.result.token_ids) == (PURGED_PAYLOAD, "", ())
    assert job.result.logprobs is None  # they have the output's tokens in them
    assert job.result.choices == (Choice(1, "", (), "stop", None),)
    assert (job.result.completion_tokens, job.stats is not None, len(job.attempts)) == (3, True, 1)
    assert kept is not None
    assert kept.result is not None
    assert kept.result.text == "It is what it is."
    assert Reports(database).latency(EVERYTHING) == latency
    assert purger.run(scope) == Purged(0, 0, 0)


def test_job_that_is_queued_again_meanwhile_stays(store: JobStore, database: Engine) -> None:
    """Between the look for old jobs and their deletion somebody retries one."""
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, AttemptState.FAILED)])
    store.mark_retried(["a"])
    with database.begin() as connection:
        retention._delete_jobs(connection, {"a": after(20)})
        retention._drop_texts(connection, ["a"])
    job = store.job("a")
    assert job is not None
    assert job.state is JobState.QUEUED
    assert job.payload != PURGED_PAYLOAD
