"""Roll-ups: reports say the same with them as from the rows of jobs, whatever happened since."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import Engine, delete, func, insert, select, update

from tests.sql.builders import START, claim_of, outcome_of
from tests.sql.history import DAYS, NOW, assert_close, outcomes_over_days, roll_up, store_all, write_history
from worker.records import AttemptState, Outcome
from worker.sql.database import reading, writing
from worker.sql.reporting import Bucket, Dimension, Grouping, ReportFilter, Reports
from worker.sql.rollups.rolling import Roller
from worker.sql.store import JobStore
from worker.sql.tables import HistogramRow, HourlyBatchTotalsRow, HourlyTotalsRow, JobRow, RolledHourRow

EVERYTHING = ReportFilter()
BY_DAY = (Dimension.DAY, Dimension.QUEUE)


@pytest.fixture
def history(store: JobStore, database: Engine) -> list[Outcome]:
    return write_history(store, database)


FILTERS = [
    EVERYTHING,
    ReportFilter(queue="low"),
    ReportFilter(tenant="acme", model="m", since=START + timedelta(days=1, hours=5, minutes=7)),
    ReportFilter(until=START + timedelta(days=11, hours=3, minutes=1)),
    ReportFilter(since=START + timedelta(days=2, minutes=59), until=START + timedelta(days=9, seconds=1)),
    ReportFilter(since=START + timedelta(days=2, minutes=1), until=START + timedelta(days=2, minutes=40)),
    ReportFilter(batch="night", queue="high", since=START + timedelta(days=1, minutes=20)),
]
GROUPINGS = [
    (),
    (Dimension.QUEUE,),
    (Dimension.TENANT, Dimension.MODEL),
    BY_DAY,
    (Dimension.BATCH,),
    (Bucket(7200),),
    (Bucket(1800),),
    (Dimension.BATCH, Dimension.HOUR),
]


def asked() -> Iterator[tuple[ReportFilter, Grouping]]:
    """Yield filters and groupings, each of them a few times."""
    for shift in (0, 1, 4):
        yield from ((chosen, GROUPINGS[(number + shift) % len(GROUPINGS)]) for number, chosen in enumerate(FILTERS))


def say_all(reports: Reports) -> list[object]:
    """Return every report that is exact with roll-ups as well; sums of fractions only so far as they are."""
    said: list[object] = []
    for chosen, by in asked():
        said += [reports.summary(chosen), reports.totals(chosen, by), reports.throughput(chosen, by)]
        said += [reports.prefix(chosen, by), reports.failures(chosen, by)]
        said += [(row.group, row.reason, row.attempts) for row in reports.waste(chosen, by)]
        said += [(row.group, row.jobs, round(row.cost or 0, 6)) for row in reports.costs(chosen, by)]
        saved = reports.savings(chosen, by)
        said += [(row.group, round(row.saved_against_limit_block_seconds or 0, 6)) for row in saved]
    return said


@pytest.mark.usefixtures("history")
def test_reports_say_the_same_with_rollups(database: Engine) -> None:
    reports = Reports(database)
    from_rows = say_all(reports)
    assert roll_up(database)[0] > 250
    with reading(database) as connection:
        assert connection.scalar(select(func.count()).select_from(HourlyTotalsRow))
    assert say_all(reports) == from_rows
    assert roll_up(database) == (0, 0)  # nothing changed: nothing to do


@pytest.mark.usefixtures("history")
def test_percentiles_from_histograms_are_within_their_error(database: Engine) -> None:
    exact = [Reports(database).latency(chosen, by) for chosen, by in asked()]
    roll_up(database)
    for (chosen, by), rows in zip(asked(), exact, strict=True):
        assert_close(rows, Reports(database, exact_jobs=0).latency(chosen, by))
        again = Reports(database).latency(chosen, by)
        assert [(row.count, row.p99, row.relative_error) for row in again] == [
            (row.count, row.p99, 0.0) for row in rows
        ]


def test_late_and_changed_jobs_are_counted_again(database: Engine, store: JobStore, history: list[Outcome]) -> None:
    now = NOW - timedelta(days=2)  # the last two days are to come
    old = [outcome for outcome in history if outcome.ended_at < now - timedelta(days=4)]
    roll_up(database, now)
    late = outcomes_over_days(2, 40, DAYS - 2.5)  # committed long after they ended
    store_all(store, late)
    failed = [outcome.claim.job_id for outcome in old if outcome.state is AttemptState.FAILED]
    assert store.mark_retried(failed)
    roll_up(database, now + timedelta(minutes=30))  # within the hour: only the last two days are looked at
    assert Reports(database).totals(EVERYTHING) != totals_of_rows(database)
    roll_up(database, now + timedelta(minutes=30), check_all=True)
    assert Reports(database).totals(EVERYTHING) == totals_of_rows(database)


def totals_of_rows(database: Engine) -> object:
    """Return the totals as the rows of jobs have them: a period that is no whole hour cannot come from roll-ups."""
    with writing(database) as connection:
        hours = [dict(row) for row in connection.execute(select(RolledHourRow.__table__)).mappings()]
        connection.execute(delete(RolledHourRow))
    totals = Reports(database).totals(EVERYTHING)
    with writing(database) as connection:
        connection.execute(insert(RolledHourRow), hours)
    return totals


def jobs_by_batch(database: Engine) -> list[tuple[object, int]]:
    return [(row.group, row.jobs) for row in Reports(database).totals(ReportFilter(until=NOW), (Dimension.BATCH,))]


@pytest.mark.usefixtures("history")
def test_batches_of_purged_jobs_are_still_counted(database: Engine) -> None:
    before = jobs_by_batch(database)
    roll_up(database)
    with writing(database) as connection:
        connection.execute(update(RolledHourRow).values(is_final=True))
        connection.execute(delete(JobRow).where(JobRow.ended_at < NOW - timedelta(days=3)))
    assert jobs_by_batch(database) == before


@pytest.mark.usefixtures("history")
def test_hours_of_an_earlier_version_are_read_from_rows_until_counted_again(database: Engine) -> None:
    """As after an upgrade: earlier versions counted no batches, and have other histograms."""
    reports = Reports(database, exact_jobs=0)
    medians = [(row.group, row.count) for row in reports.latency(EVERYTHING, BY_DAY)]
    before = jobs_by_batch(database)
    roll_up(database)
    with writing(database) as connection:
        connection.execute(delete(HourlyBatchTotalsRow))
        connection.execute(delete(HistogramRow))
        connection.execute(update(RolledHourRow).values(has_batches=False, has_histograms=False))
    assert jobs_by_batch(database) == before
    assert [(row.group, row.count) for row in reports.latency(EVERYTHING, BY_DAY)] == medians
    assert roll_up(database, check_all=True)[1] > 24
    assert roll_up(database, check_all=True) == (0, 0)
    with reading(database) as connection:
        assert connection.scalar(select(func.count()).select_from(HourlyBatchTotalsRow))
        assert connection.scalar(select(func.count()).select_from(HistogramRow))
    assert jobs_by_batch(database) == before
    assert [(row.group, row.count) for row in reports.latency(EVERYTHING, BY_DAY)] == medians


@pytest.mark.usefixtures("history")
def test_histograms_of_old_days_become_one(database: Engine) -> None:
    roll_up(database, START + timedelta(days=3))
    before = medians_by_day(database)
    roll_up(database, NOW)
    with reading(database) as connection:
        starts = set(connection.scalars(select(HistogramRow.starts_at)))
    midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
    assert {start.hour for start in starts if start < midnight - timedelta(days=8)} == {0}
    assert len({start.hour for start in starts if start >= midnight - timedelta(days=8)}) > 5
    assert medians_by_day(database)[: len(before)] == before


def medians_by_day(database: Engine) -> list[object]:
    """Return the medians of all days but the last, as histograms have them."""
    rows = Reports(database, exact_jobs=0).latency(EVERYTHING, (Dimension.DAY,))
    return [(row.group, row.metric, row.count, row.p50) for row in rows if row.group != rows[-1].group]


def test_rounds_of_nothing(database: Engine) -> None:
    assert roll_up(database) == (0, 0)
    assert Reports(database).rolled_until() is None
    assert Reports(database).totals(EVERYTHING)[0].jobs == 0


@pytest.mark.usefixtures("history")
def test_round_that_is_stopped_goes_on_where_it_was(database: Engine) -> None:
    days: list[int] = []
    roller = Roller(database, now=lambda: NOW)
    roller.run(told=lambda done, _total: days.append(done), stopped=lambda: len(days) >= 3)
    until = Reports(database).rolled_until()
    assert until is not None
    assert until < NOW - timedelta(days=2)
    roller.run()
    assert Reports(database).rolled_until() == NOW.replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    assert Reports(database).totals(EVERYTHING) == totals_of_rows(database)


def test_jobs_without_a_tenant_or_model_are_counted(database: Engine, store: JobStore) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "nobody")
    store.finish_attempts([outcome_of(claim)])
    with writing(database) as connection:
        connection.execute(update(JobRow).values(tenant=None, model=None))
    roll_up(database)
    (row,) = Reports(database).totals(EVERYTHING, (Dimension.TENANT, Dimension.MODEL))
    assert (row.group, row.jobs_done) == ((None, None), 1)
