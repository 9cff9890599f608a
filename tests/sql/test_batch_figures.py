"""Latencies and memory by batch: from roll-ups within their error, whatever became of the jobs since."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, delete, func, select, update

from tests.sql.builders import START
from tests.sql.history import NOW, assert_close, outcomes_over_days, roll_up, store_all, write_history
from worker.sql.database import reading, writing
from worker.sql.reporting import Dimension, Grouping, LatencyRow, MemoryRow, ReportFilter, Reports
from worker.sql.store import JobStore
from worker.sql.tables import HourlyBatchFigureRow, HourlyBatchTotalsRow, JobRow, RolledHourRow

EVERYTHING = ReportFilter()
BY_BATCH = (Dimension.BATCH,)
ASKED: list[tuple[ReportFilter, Grouping]] = [
    (EVERYTHING, BY_BATCH),
    (EVERYTHING, (Dimension.BATCH, Dimension.DAY)),
    (EVERYTHING, (Dimension.HOUR, Dimension.BATCH)),
    (ReportFilter(since=START + timedelta(days=1, minutes=7), until=NOW - timedelta(days=1, minutes=3)), BY_BATCH),
    (ReportFilter(batch="night"), ()),
    (ReportFilter(batch="night", since=START + timedelta(days=1, minutes=7)), (Dimension.DAY,)),
]


@pytest.fixture(autouse=True)
def _history(store: JobStore, database: Engine) -> None:
    write_history(store, database)


def said(reports: Reports, asked: list[tuple[ReportFilter, Grouping]] = ASKED) -> list[list[LatencyRow | MemoryRow]]:
    return [[*reports.latency(chosen, by), *reports.memory(chosen, by)] for chosen, by in asked]


def assert_all_close(exact: list[list[LatencyRow | MemoryRow]], rough: list[list[LatencyRow | MemoryRow]]) -> None:
    for one, other in zip(exact, rough, strict=True):
        assert_close(one, other)


def test_rollups_have_what_the_rows_have(database: Engine, store: JobStore) -> None:
    """A batch that runs over days is one, and what ended since is added."""
    exact = said(Reports(database))
    roll_up(database, NOW - timedelta(hours=7))
    assert_all_close(exact, said(Reports(database, exact_jobs=0)))
    assert said(Reports(database)) == exact  # of few jobs from their rows
    late = outcomes_over_days(2, 40)
    store_all(store, late)
    exact = said(Reports(database))
    roll_up(database, check_all=True)
    assert_all_close(exact, said(Reports(database, exact_jobs=0)))


def test_purged_jobs_are_still_counted(database: Engine) -> None:
    exact = said(Reports(database))
    roll_up(database)
    with writing(database) as connection:
        connection.execute(update(RolledHourRow).values(is_final=True))
        connection.execute(delete(JobRow).where(JobRow.ended_at < NOW - timedelta(hours=4)))
    whole_hours = [number for number, (chosen, _) in enumerate(ASKED) if chosen.since is None]  # the others have edges
    rough = said(Reports(database))  # however few are left
    assert_all_close([exact[number] for number in whole_hours], [rough[number] for number in whole_hours])


def test_hours_of_an_earlier_version_are_read_from_rows_until_counted_again(database: Engine) -> None:
    exact = said(Reports(database))
    roll_up(database)
    with writing(database) as connection:
        connection.execute(delete(HourlyBatchFigureRow))
        connection.execute(update(RolledHourRow).values(has_batch_figures=False))
        others = set(connection.scalars(select(HourlyBatchTotalsRow.id)))
    assert_all_close(exact, said(Reports(database, exact_jobs=0)))
    assert roll_up(database, check_all=True)[1] > 24
    with reading(database) as connection:
        assert connection.scalar(select(func.count()).select_from(HourlyBatchFigureRow))
        left = set(connection.scalars(select(HourlyBatchTotalsRow.id)))
    assert left == others  # what there was is not counted again
    assert roll_up(database, check_all=True) == (0, 0)
    assert_all_close(exact, said(Reports(database, exact_jobs=0)))


def test_queues_models_and_tenants_of_batches_are_told_apart_by_the_rows(database: Engine) -> None:
    asked: list[tuple[ReportFilter, Grouping]] = [
        (ReportFilter(tenant="acme"), BY_BATCH),
        (ReportFilter(batch="night", model="m"), ()),
        (ReportFilter(batch="night"), (Dimension.QUEUE, Dimension.DAY)),
    ]
    exact = said(Reports(database), asked)
    roll_up(database)
    assert_all_close(exact, said(Reports(database, exact_jobs=0), asked))
