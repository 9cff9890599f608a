"""Reports as tables, and in every format, over jobs whose figures are known."""

import csv
import io
from collections import Counter
from datetime import timedelta

import pyarrow.parquet
import pytest
from sqlalchemy import Engine, event

from tests.reports.conftest import END
from worker.reports.catalogue import report_table, with_trend
from worker.reports.comparing import FEW_JOBS, Side, Verdict, compare
from worker.reports.csv_form import to_csv
from worker.reports.html.report import whole_page
from worker.reports.kinds import (
    COST,
    FAILURES,
    LATENCY,
    MEMORY,
    PREFIX,
    SAVINGS,
    SUMMARY,
    THROUGHPUT,
    WASTE,
    WORKERS,
    By,
    Kind,
)
from worker.reports.parquet_form import to_parquet
from worker.reports.phases import phase_table, phases_of
from worker.reports.tables import Column, ReportTable, Trend
from worker.reports.units import Unit
from worker.sql.reporting import Dimension, ReportFilter, Reports
from worker.sql.rollups.sources import COSTS, FIGURES, HISTOGRAMS, TOTALS
from worker.sql.rollups.sources import FAILURES as FAILED
from worker.sql.rollups.sources import WASTE as WASTED

EVERYTHING = ReportFilter()


def table_of(reports: Reports, kind: Kind, *by: Dimension, chosen: ReportFilter = EVERYTHING) -> ReportTable:
    return with_trend(report_table(kind, reports, chosen, by), kind, reports, chosen, by)


@pytest.mark.parametrize(
    ("kind", "by", "expected"),
    [
        (SUMMARY, (), {"jobs": 240, "jobs_done": 220, "jobs_failed": 20, "completion_tokens": 4400}),
        (SUMMARY, (Dimension.BATCH,), {"batch": "monday", "jobs": 120}),
        (THROUGHPUT, (Dimension.QUEUE,), {"queue": "bulk", "jobs_done": 100, "jobs_failed": 20}),
        (LATENCY, (), {"metric": "queue_ms", "count": 220, "p50": 200.0, "max": 200.0}),
        (MEMORY, (Dimension.TENANT,), {"tenant": "<b>&amp;", "metric": "kv_blocks_peak", "p99": 8.0}),
        (SAVINGS, (), {"saved_against_limit_share": 0.5, "saved_by_sharing_share": 0.5}),
        (PREFIX, (Dimension.TENANT, Dimension.MODEL), {"tenant": "<b>&amp;", "model": "smollm2", "jobs": 60}),
        (FAILURES, (), {"error_code": "numerical_error", "jobs": 20, "example_message": "<i>why</i>"}),
        (WASTE, (), {"wasted_engine_seconds": 10.0}),
        (COST, (Dimension.BATCH,), {"batch": "monday", "jobs": 120, "engine_seconds": 60.0, "cost": 0.06}),
    ],
)
def test_first_row_of_each_kind(filled: Reports, kind: Kind, by: By, expected: dict[str, object]) -> None:
    table = table_of(filled, kind, *by)
    first = table.records()[0]
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert table.trend is not None
    assert len(table.trend.lines) == len(table.rows)
    assert any(value for value in table.trend.lines[0])
    assert all(len(texts) == len(table.columns) for texts in table.readable_rows())


def test_lines_over_time_add_up(filled: Reports) -> None:
    table = table_of(filled, SUMMARY, Dimension.TENANT)
    assert table.trend is not None
    assert [sum(value or 0 for value in line) for line in table.trend.lines] == list(table.column("jobs")) == [80] * 3


def test_a_workers_time_is_in_steps_of_hours(filled: Reports) -> None:
    """It is known by the hour: the hour in which these jobs ended began before the first of them did."""
    table = table_of(filled, WORKERS, chosen=ReportFilter(since=END - timedelta(minutes=45)))
    assert table.trend is not None
    assert table.trend.title == "engine per hour"
    assert [line[-1] for line in table.trend.lines] == list(table.column("engine_seconds")) == [900.0]
    shares = (table.records()[0]["kv_held_share"], table.records()[0]["kv_cached_share"])
    assert shares == pytest.approx((10 / 12, 1 / 12))


def test_rows_about_time_have_no_lines_over_time(filled: Reports) -> None:
    table = table_of(filled, THROUGHPUT, Dimension.DAY)
    assert table.trend is None
    assert [text[0] for text in table.readable_rows()] == [
        "2026-11-27 00:00:00",
        "2026-11-28 00:00:00",
        "2026-11-29 00:00:00",
    ]


def test_lines_shrink_to_the_room_there_is() -> None:
    trend = Trend("jobs", 3600, ((1.0, 3.0, None, None, 5.0), (None, 2.0, 4.0, 6.0, 8.0)))
    assert trend.within(5) == trend
    half = trend.within(3)
    assert half.lines == ((2.0, None, 5.0), (2.0, 5.0, 8.0))
    assert (trend.title, half.title) == ("jobs per hour", "jobs per 2 h")


def test_machine_formats_hold_the_same_values() -> None:
    columns = (
        Column("batch", "batch", Unit.TEXT),
        Column("jobs", "jobs", Unit.COUNT, is_whole=True),
        Column("ttft_ms", "ttft", Unit.MILLISECONDS),
        Column("first_at", "first", Unit.MOMENT),
    )
    rows = (("=cmd()", 3, 1.5, END), (None, None, None, None), ('-"a",b\n', 0, 0.0, END))
    table = ReportTable("t", "T", columns, rows)
    read = list(csv.reader(io.StringIO(to_csv(table))))
    assert read[0] == ["batch", "jobs", "ttft_ms", "first_at"]
    assert read[1] == ["'=cmd()", "3", "1.5", "2026-11-29T12:00:00+00:00"]
    assert read[2] == ["", "", "", ""]
    assert read[3][0] == '\'-"a",b\n'
    parquet = pyarrow.parquet.read_table(io.BytesIO(to_parquet(table)))
    assert [tuple(record.values()) for record in parquet.to_pylist()] == list(rows)
    assert parquet.schema.field("ttft_ms").metadata == {b"unit": b"ms"}


@pytest.mark.parametrize("kind", [SUMMARY, THROUGHPUT, LATENCY, FAILURES, COST])
def test_parquet_of_real_reports(filled: Reports, kind: Kind) -> None:
    table = table_of(filled, kind, Dimension.HOUR, Dimension.TENANT)
    assert pyarrow.parquet.read_table(io.BytesIO(to_parquet(table))).num_rows == len(table.rows) > 0


def test_phases_of_a_job_add_up(filled: Reports) -> None:
    job = filled.job("job-005")
    assert job is not None
    spans = phases_of(job)
    assert [span.phase.value for span in spans] == ["queued", "tokenized", "admitted", "prefill", "decode", "committed"]
    assert (spans[0].start_ms, spans[-1].end_ms) == (0.0, job.e2e_ms)
    assert [before.end_ms for before in spans[:-1]] == [after.start_ms for after in spans[1:]]
    assert phase_table(job).column("length_ms") == pytest.approx((200, 2, 8, 290, job.e2e_ms - 510, 10))


def test_two_batches_side_by_side(filled: Reports) -> None:
    sides = Side("a", ReportFilter(batch="monday")), Side("b", ReportFilter(batch="tuesday"))
    rows = {row.metric: row for row in compare(filled, *sides)}
    slower = rows["e2e_p50_ms"]
    assert slower.change == pytest.approx(0.5)
    assert slower.verdict == Verdict.MUCH_WORSE.value
    assert (slower.jobs_a, slower.jobs_b) == (110, 110)
    assert rows["ttft_p99_ms"].verdict == Verdict.SAME.value
    assert rows["cost_per_job"].a == pytest.approx(0.0005)
    turned = {row.metric: row.verdict for row in compare(filled, *reversed(sides))}
    assert turned["e2e_p50_ms"] == Verdict.MUCH_BETTER.value


def test_few_jobs_tell_nothing(filled: Reports, filled_database: Engine) -> None:
    a, b = ReportFilter(batch="monday"), ReportFilter(batch="tuesday", since=END.replace(hour=11, minute=0))
    rows = {row.metric: row for row in compare(filled, Side("a", a), Side("b", b))}
    assert 0 < rows["e2e_p50_ms"].jobs_b < FEW_JOBS
    assert rows["e2e_p50_ms"].verdict == Verdict.FEW_JOBS.value
    nothing = ReportFilter(batch="none")
    assert {row.verdict for row in compare(filled, Side("a", a), Side("b", nothing)) if row.b is None} == {
        Verdict.UNKNOWN.value
    }


def test_a_page_asks_each_question_once(filled: Reports) -> None:
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *rest: object) -> None:
        asked.append(f"{statement} {parameters}")

    event.listen(filled.engine, "before_cursor_execute", note)
    whole_page(filled, EVERYTHING, END + timedelta(hours=1))
    own = [statement for statement in asked if "FROM" in statement and "rolled_hours" not in statement]
    assert len(own) > 20
    # Totals have a snapshot with the jobs that have not ended; savings and prefix read the same sums without these.
    # Percentiles are exact of so many jobs at most: whether it is more is counted with each figure.
    again = {statement for statement, number in Counter(own).items() if number > 1}
    assert all("jobs_with_retries" in statement or "LIMIT" in statement for statement in again)
    assert max(Counter(own).values()) <= 5


def test_each_measure_has_its_column_in_a_roll_up() -> None:
    """They are in two places, a statement's expression and a table's column: neither may lack one."""
    keys = {"id", "hour", "starts_at", "seconds", "queue", "model", "tenant"}
    for source in (TOTALS, FAILED, WASTED, COSTS, FIGURES, HISTOGRAMS):
        columns = set(source.table.__table__.c.keys()) - keys
        assert columns == {*source.keys, *source.measures}, source.table.__tablename__
