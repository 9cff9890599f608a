"""Histograms by the hour, the day and the week: each has what the rows of jobs have, however they came about."""

import random
from collections import Counter
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, delete, func, select, update

from tests.sql.builders import START, claim_of, outcome_of, stats_of, worker_of
from worker.records import Outcome
from worker.sql import schema
from worker.sql.database import reading, writing
from worker.sql.reporting import Dimension, ReportFilter, Reports
from worker.sql.reporting.parts import RolledSpan, divide_histograms
from worker.sql.rollups.periods import DAY, HOUR, WEEK, ceil_to, day_start, floor_to, hour_start, starts_in
from worker.sql.rollups.rolling import Roller, rolled_span
from worker.sql.store import JobStore
from worker.sql.tables import HistogramRow, JobRow, RolledHourRow

FIRST = ceil_to(START, WEEK)
DAYS = 31
NOW = FIRST + DAYS * DAY
HOURS_KEPT = 8 * DAY


def ended_at(moment: datetime, name: str) -> Outcome:
    """A job that is done at a moment."""
    claim = claim_of(name, at_s=(moment - START).total_seconds() - 1)
    return outcome_of(claim, at_s=(moment - START).total_seconds(), stats=stats_of(), text="text")


@pytest.fixture
def ends(store: JobStore) -> list[datetime]:
    """When jobs ended: some hundred over a month, none on one of the days."""
    store.register_worker(worker_of("w1"))
    chance = random.Random(7)
    moments = sorted(FIRST + timedelta(seconds=chance.uniform(0, DAYS * DAY.total_seconds())) for _ in range(250))
    moments = [FIRST, *(moment for moment in moments if day_start(moment) != FIRST + 20 * DAY)]
    outcomes = [ended_at(moment, f"job-{number}") for number, moment in enumerate(moments)]
    store.begin_attempts([outcome.claim for outcome in outcomes], "w1")
    assert not store.finish_attempts(outcomes)
    return moments


def jobs_by_period(database: Engine) -> dict[timedelta, Counter[datetime]]:
    """Return how many jobs the histograms of one figure have in each period."""
    found: dict[timedelta, Counter[datetime]] = {HOUR: Counter(), DAY: Counter(), WEEK: Counter()}
    with reading(database) as connection:
        rows = connection.execute(
            select(HistogramRow.seconds, HistogramRow.starts_at, func.sum(HistogramRow.jobs))
            .where(HistogramRow.metric == "e2e_ms")
            .group_by(HistogramRow.seconds, HistogramRow.starts_at)
        )
        for seconds, start, jobs in rows:
            found[timedelta(seconds=seconds)][start] = int(jobs)
    return found


def assert_right(database: Engine, ends: list[datetime], hours_from: datetime) -> None:
    """Check the periods against the ends of jobs: days and weeks that are rolled up whole, hours from a time on."""
    with reading(database) as connection:
        span = rolled_span(connection)
        assert span is not None
        first, last = span
        assert connection.scalar(select(func.count()).select_from(RolledHourRow)) == (last - first) // HOUR
    found = jobs_by_period(database)
    for period, since in ((HOUR, hours_from), (DAY, first), (WEEK, first)):
        begin, end = ceil_to(since, period), floor_to(last, period)
        expected = Counter(floor_to(moment, period) for moment in ends if begin <= moment < end)
        assert found[period] == expected, period


def roll_up(database: Engine, now: datetime, *, max_steps: int | None = None) -> None:
    """Run a round, which is stopped after so many steps."""
    done: list[int] = []

    def told(number: int, _total: int) -> None:
        done.append(number)

    Roller(database, now=lambda: now).run(told=told, stopped=lambda: max_steps is not None and len(done) >= max_steps)


@pytest.mark.parametrize("rounds", [[31.0], [0.3, 1.1, 9.4, 9.6, 10.0, 24.7, 31.0], [3.55, 31.0], [8.01, 16.5, 16.9]])
def test_periods_of_rounds_at_any_time(database: Engine, ends: list[datetime], rounds: list[float]) -> None:
    for days in rounds:
        now = FIRST + days * DAY
        roll_up(database, now)
        assert_right(database, ends, day_start(hour_start(now - timedelta(minutes=10))) - HOURS_KEPT)


def test_round_that_is_stopped_leaves_what_it_says(database: Engine, ends: list[datetime]) -> None:
    roll_up(database, FIRST + 9.4 * DAY)
    for max_steps in (1, 2, 3, 4):
        roll_up(database, NOW, max_steps=max_steps)
        exact = Reports(database).latency(ReportFilter(), (Dimension.HOUR,))
        rough = Reports(database, exact_jobs=0).latency(ReportFilter(), (Dimension.HOUR,))
        assert [(row.group, row.metric, row.count) for row in rough] == [
            (row.group, row.metric, row.count) for row in exact
        ]
    assert_right(database, ends, day_start(NOW) - HOURS_KEPT - DAY)


def test_rest_of_a_day_is_added_to_what_is_purged(database: Engine, ends: list[datetime]) -> None:
    roll_up(database, FIRST + 5.5 * DAY)  # half of a day
    with writing(database) as connection:
        connection.execute(update(RolledHourRow).values(is_final=True))
        connection.execute(delete(JobRow).where(JobRow.ended_at < FIRST + 5 * DAY + 8 * HOUR))
    roll_up(database, NOW)
    assert_right(database, ends, day_start(NOW) - HOURS_KEPT - DAY)


def test_late_job_changes_its_day_and_week(database: Engine, store: JobStore, ends: list[datetime]) -> None:
    roll_up(database, NOW)
    late = FIRST + 10.5 * DAY
    early = FIRST - 3 * DAY
    outcomes = [ended_at(late, "late"), ended_at(early, "early")]
    store.begin_attempts([outcome.claim for outcome in outcomes], "w1")
    assert not store.finish_attempts(outcomes)
    Roller(database, now=lambda: NOW).run(check_all=True)
    assert_right(database, [*ends, late, early], day_start(NOW) - HOURS_KEPT - DAY)


@pytest.mark.usefixtures("ends")
def test_months_are_read_by_the_week(database: Engine) -> None:
    now = NOW - DAY  # some days and hours behind the last week
    roll_up(database, now)
    chosen = ReportFilter(since=FIRST + 1.25 * DAY)
    with reading(database) as connection:
        parts = divide_histograms(connection, chosen, ())
        by_day = divide_histograms(connection, chosen, (Dimension.DAY,))
    last = hour_start(now - timedelta(minutes=10))
    days, weeks, more, hours = parts.rolled
    assert days == RolledSpan(FIRST + 2 * DAY, FIRST + WEEK, DAY)
    assert weeks == RolledSpan(FIRST + WEEK, FIRST + 4 * WEEK, WEEK)
    assert more == RolledSpan(FIRST + 4 * WEEK, day_start(last), DAY)
    assert hours == RolledSpan(day_start(last), last, HOUR)
    assert parts.rows == [(chosen.since, days.begin), (last, None)]
    assert [of.period for of in by_day.rolled] == [DAY, HOUR]


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("days", [5.5, DAYS, DAYS - 0.4])
def test_upgrade_makes_days_and_weeks_of_what_there_is(database: Engine, database_url: str, days: float) -> None:
    """Up to revision 0018 recent days were by the hour, and older ones by the day, in one table without a length."""
    roll_up(database, FIRST + days * DAY)
    before = jobs_by_period(database)
    schema.downgrade(database_url, "0018")
    with reading(database) as connection:
        jobs = connection.exec_driver_sql("SELECT sum(jobs) FROM figure_histograms WHERE metric = 'e2e_ms'").scalar()
    last = hour_start(FIRST + days * DAY - timedelta(minutes=10))
    with reading(database) as connection:
        assert jobs == connection.scalar(select(func.count()).where(JobRow.ended_at < last))
    schema.upgrade(database_url)
    assert jobs_by_period(database) == before


def test_periods_begin_where_they_should() -> None:
    moment = FIRST + 9 * DAY + 3 * HOUR + timedelta(seconds=1)
    assert floor_to(moment, WEEK) == FIRST + WEEK
    assert ceil_to(moment, DAY) == FIRST + 10 * DAY
    assert list(starts_in(moment, moment + DAY, DAY)) == [FIRST + 9 * DAY, FIRST + 10 * DAY]
