"""A page's reports: what they add up of steps of time is what the reports say of all of it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.sql.builders import START
from tests.sql.history import NOW, roll_up, write_history
from worker.sql.reporting import Bucket, Dimension, Grouping, LatencyRow, MemoryRow, ReportFilter, Reports
from worker.sql.reporting.asked_once import AskedOnce
from worker.sql.store import JobStore

DAY = Bucket(86_400)
FILTERS = [
    ReportFilter(),
    ReportFilter(tenant="acme", since=START + timedelta(days=1, hours=5, minutes=7)),
    ReportFilter(batch="night"),
]


@pytest.fixture(autouse=True)
def _history(store: JobStore, database: Engine) -> None:
    write_history(store, database)
    roll_up(database, NOW - timedelta(hours=5))


def by_day(_first: datetime, _last: datetime) -> Bucket:
    return DAY


def figures(reports: Reports, chosen: ReportFilter, by: Grouping) -> Sequence[tuple[Any, ...]]:
    rows: list[LatencyRow | MemoryRow] = [*reports.latency(chosen, by), *reports.memory(chosen, by)]
    return [
        (row.group, row.metric, row.count, row.p50, row.p90, row.p99, row.max, row.relative_error, round(row.mean or 0))
        for row in rows
    ]


@pytest.mark.parametrize("exact_jobs", [0, 100_000])
@pytest.mark.parametrize("chosen", FILTERS)
def test_figures_are_those_of_the_reports(database: Engine, chosen: ReportFilter, exact_jobs: int) -> None:
    reports = Reports(database, exact_jobs=exact_jobs)
    asked_once = AskedOnce(reports, by_day)
    for by in ((), (DAY,), (Dimension.QUEUE,)):
        assert figures(asked_once, chosen, by) == figures(reports, chosen, by)


def test_histograms_are_read_once(database: Engine) -> None:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    asked_once = AskedOnce(Reports(database, exact_jobs=0), by_day)
    event.listen(database, "before_cursor_execute", note)
    for by in ((), (DAY,)):
        figures(asked_once, FILTERS[0], by)
    assert len([statement for statement in statements if "FROM histograms" in statement and "sum(" in statement]) == 1
