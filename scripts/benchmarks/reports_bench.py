"""`scripts/bench reports`: how long each report takes over millions of jobs in PostgreSQL."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from uuid import uuid4

import click
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, create_engine, make_url, text

from scripts.benchmarks.report_data import write_jobs
from scripts.fault_table.postgresql import NoServer, connect_to_server, create_database, drop_database
from worker.reports.html.report import whole_page
from worker.sql import schema
from worker.sql.database import open_database
from worker.sql.reporting import Bucket, Dimension, ReportFilter, Reports
from worker.sql.rollups.rolling import Roller
from worker.sql.views import views

GOAL_SECONDS = 5.0
BY_JOB = {"job_facts", "job_costs"}  # views with a row for each job: nobody reads them whole
DAY = 86_400
END = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)  # of the made-up jobs


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one report: as the first query of its connection, the median of those after it, the worst of all."""

    report: str
    first_s: float
    again_s: float
    worst_s: float
    rows: int


def _asked() -> Mapping[str, Callable[[Reports], object]]:
    everything = ReportFilter()
    month = ReportFilter(since=END - timedelta(days=30, hours=5, minutes=7))
    day = ReportFilter(since=END - timedelta(days=1))
    batch = ReportFilter(batch="batch-1000")
    tenant = ReportFilter(tenant="tenant-1")
    queue, by_batch = (Dimension.QUEUE,), (Dimension.BATCH,)
    return {
        "summary": lambda reports: reports.summary(everything),
        "summary, 30 days": lambda reports: reports.summary(month),
        "summary, a tenant": lambda reports: reports.summary(tenant),
        "summary, a batch": lambda reports: reports.summary(batch),
        "throughput by hour": lambda reports: reports.throughput(everything),
        "throughput by day and queue": lambda reports: reports.throughput(everything, (Dimension.DAY, *queue)),
        "throughput by batch": lambda reports: reports.throughput(everything, by_batch),
        "latency": lambda reports: reports.latency(everything),
        "latency by queue": lambda reports: reports.latency(everything, queue),
        "latency by model": lambda reports: reports.latency(everything, (Dimension.MODEL,)),
        "latency by tenant": lambda reports: reports.latency(everything, (Dimension.TENANT,)),
        "latency by day": lambda reports: reports.latency(everything, (Bucket(DAY),)),
        "latency, 30 days": lambda reports: reports.latency(month),
        "latency, a day by the hour": lambda reports: reports.latency(day, (Dimension.HOUR,)),
        "latency, a batch": lambda reports: reports.latency(batch),
        "latency by batch": lambda reports: reports.latency(everything, by_batch),
        "latency by batch, 30 days": lambda reports: reports.latency(month, by_batch),
        "latency by batch, a day": lambda reports: reports.latency(day, by_batch),
        "latency by week": lambda reports: reports.latency(everything, (Bucket(7 * DAY),)),
        "memory": lambda reports: reports.memory(everything),
        "memory by model": lambda reports: reports.memory(everything, (Dimension.MODEL,)),
        "memory by day": lambda reports: reports.memory(everything, (Bucket(DAY),)),
        "memory by batch": lambda reports: reports.memory(everything, by_batch),
        "savings by queue": lambda reports: reports.savings(everything, queue),
        "prefix by tenant": lambda reports: reports.prefix(everything, (Dimension.TENANT,)),
        "failures": lambda reports: reports.failures(everything),
        "failures by batch": lambda reports: reports.failures(everything, by_batch),
        "waste by queue": lambda reports: reports.waste(everything, queue),
        "waste by batch": lambda reports: reports.waste(everything, by_batch),
        "costs by tenant": lambda reports: reports.costs(everything, (Dimension.TENANT,)),
        "costs by batch": lambda reports: reports.costs(everything, by_batch),
        "slowest": lambda reports: reports.slowest(everything),
        "slowest, a day": lambda reports: reports.slowest(day),
        "the whole page": lambda reports: whole_page(reports, everything, END),
    }


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Jobs.")
@click.option("--keep", is_flag=True, help="Leave the database, and print its URL.")
@click.option("--database-url", metavar="URL", help="Measure one that --keep left; upgrade and roll it up before.")
@click.option("--views/--no-views", "with_views", default=False, help="Read each view whole as well.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reports(rows: int, keep: bool, database_url: str | None, with_views: bool, as_json: bool) -> None:
    """Make up jobs over 90 days in a database of their own, roll them up, and measure each report.

    \b
    Example:
      scripts/bench reports --rows 10000000
    """
    if database_url is not None:
        _roll_up(database_url, _Clock())
        _report(_measure(database_url, with_views), as_json)
        return
    try:
        server = connect_to_server()
    except NoServer as error:
        raise click.ClickException(str(error)) from None
    name = f"pagemill_bench_{uuid4().hex[:12]}"
    url = create_database(server, name)
    try:
        _fill(url, rows)
        _report(_measure(url, with_views), as_json)
    finally:
        if keep:
            click.echo(url, err=True)
        else:
            drop_database(server, name)


def _fill(url: str, rows: int) -> None:
    told = _Clock()
    schema.upgrade(url)
    with _autocommitting(url) as connection:
        write_jobs(connection, rows, END.isoformat(), told)
    _roll_up(url, told)


def _roll_up(url: str, told: Callable[[str], None]) -> None:
    """Bring a database to what this version's reports read; one that is there already stays as it is."""
    schema.upgrade(url)
    told("rolling up")
    pagemills = open_database(url)
    rolled = Roller(pagemills, now=lambda: END).run(
        check_all=True, told=lambda step, steps: told(f"rolled up {step} of {steps} times")
    )
    pagemills.dispose()
    told(f"rolled up {rolled.jobs:,} jobs of {rolled.hours:,} hours")
    with _autocommitting(url) as connection:
        connection.execute(text("VACUUM ANALYZE"))
        for table, size in connection.execute(text(_SIZES)):
            told(f"{table}: {size}")


@contextmanager
def _autocommitting(url: str) -> Iterator[Connection]:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


class _Clock:
    """Tells what is done, and after how long."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, what: str) -> None:
        click.echo(f"{time.monotonic() - self._started:7.1f} s  {what}", err=True)


_SIZES = (
    "SELECT relname, pg_size_pretty(pg_total_relation_size(relid)) FROM pg_stat_user_tables "
    "ORDER BY pg_total_relation_size(relid) DESC LIMIT 12"
)


def _measure(url: str, with_views: bool) -> list[Timing]:
    timings = []
    for name, ask in _asked().items():
        engine = open_database(url)
        reports = Reports(engine)
        timings.append(_time(name, partial(ask, reports)))
        engine.dispose()
    if with_views:
        timings += [_time_view(url, view.name) for view in views("postgresql") if view.name not in BY_JOB]
    return timings


def _time_view(url: str, name: str) -> Timing:
    engine = open_database(url)
    with engine.connect() as connection:
        whole = text(f"SELECT * FROM {name}")
        timing = _time(f"view {name}", lambda: tuple(connection.execute(whole)))
    engine.dispose()
    return timing


def _time(name: str, ask: Callable[[], object]) -> Timing:
    seconds = []
    for _ in range(4):
        started = time.monotonic()
        answer = ask()
        seconds.append(time.monotonic() - started)
    rows = len(answer) if isinstance(answer, tuple) else 1
    return Timing(name, seconds[0], median(seconds[1:]), max(seconds), rows)


def _report(timings: list[Timing], as_json: bool) -> None:
    for timing in timings:
        if as_json:
            click.echo(json.dumps(asdict(timing)))
    table = Table("report", "first s", "again s", "worst s", "rows")
    for timing in timings:
        seconds = (f"{value:.2f}" for value in (timing.first_s, timing.again_s, timing.worst_s))
        table.add_row(timing.report, *seconds, f"{timing.rows:,}")
    Console(stderr=as_json).print(table)
    slow = [timing.report for timing in timings if timing.worst_s > GOAL_SECONDS]
    if slow:
        click.echo(f"slower than {GOAL_SECONDS:g} s: {', '.join(slow)}", err=True)
        sys.exit(1)
