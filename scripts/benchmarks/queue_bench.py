"""`scripts/bench queue`: our queue against RQ's stock worker, at any depth, and the cost of submission."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import unquote

import click
from rich.console import Console
from rich.table import Table

from scripts.benchmarks.queue_costs import DepthCost, SubmissionCost, measure_depth, measure_submission, write_prompts
from scripts.benchmarks.queue_systems import SYSTEMS, QueueRun, run_system
from worker.queue.connection import connect
from worker.queue.embedded import embedded_url
from worker.sql import schema
from worker.sql.database import open_database, writing
from worker.sql.tables import Base

PEER = "rq SimpleWorker"
DEPTHS = (100, 10_000, 1_000_000)
FEW_JOBS = 10_000  # submitted, for comparing the memory that many take
POSTGRESQL = "PostgreSQL"
SQLITE = "SQLite"
GOALS = {
    "times_jobs_per_second": 4.0,
    "round_trips_per_job": 1.0,
    "worker_cpu_ms_per_job": 0.4,
    "submissions_per_second": 8_000,
    "recorded_submissions_per_second": 4_000,
}


@dataclass(frozen=True, slots=True)
class Services:
    """What the benchmark runs on: an emptied server, a database of each kind."""

    redis_url: str
    database_urls: Mapping[str, str]  # by kind

    @property
    def socket(self) -> str:
        return unquote(self.redis_url.removeprefix("unix://"))

    def database_url(self, system: str) -> str | None:
        """Return the database of a system that is named after its kind; "" where it needs none, None where none is."""
        for kind in (SQLITE, POSTGRESQL):
            if system.endswith(kind):
                return self.database_urls.get(kind)
        return ""


@dataclass(frozen=True, slots=True)
class Results:
    """All runs."""

    workers: Sequence[QueueRun]
    depths: Sequence[DepthCost]
    submissions: Sequence[SubmissionCost]


@click.command()
@click.option("--jobs", type=click.IntRange(min=1), default=10_000, show_default=True, help="No-op jobs a run.")
@click.option("--submit", "num_submitted", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--depth", type=click.IntRange(min=100), default=DEPTHS[-1], show_default=True, help="Most jobs to wait.")
@click.option("--max-jobs", type=click.IntRange(1, 4096), default=256, show_default=True, help="The worker's setting.")
@click.option("--repeats", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs of each kind.")
@click.option("--postgresql-url", metavar="URL", help="An empty database, which is written to; unset leaves it out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line a run and one for the summary, no tables.")
def queue(
    jobs: int, num_submitted: int, depth: int, max_jobs: int, repeats: int, postgresql_url: str | None, as_json: bool
) -> None:
    """Our worker against RQ's SimpleWorker on no-op jobs, the cost of a long queue, and of submission.

    Our engine is replaced by an instant one; everything else is real. The server is the embedded one, in a folder that
    is removed afterwards.

    \b
    Example:
      scripts/bench queue --repeats 3 --postgresql-url postgresql://me@localhost/empty
    """
    with tempfile.TemporaryDirectory() as folder, _services(Path(folder), postgresql_url) as services:
        workers = _run_workers(services, jobs, max_jobs, repeats)
        submissions = _run_submissions(services, Path(folder), num_submitted, repeats)
        # Last, for a server takes a while to recover from a million jobs.
        depths = _run_depths(services, [*(d for d in DEPTHS if d < depth), depth], repeats)
        results = Results(workers, depths, submissions)
        with closing(connect(services.redis_url, Path())) as connection:
            server: Any = connection.info("server")
    summary = _summary(results, str(server.get("valkey_version") or server["redis_version"]))
    if as_json:
        runs: list[QueueRun | DepthCost | SubmissionCost] = [*results.workers, *results.depths, *results.submissions]
        for run in runs:
            print(json.dumps(run.as_json()))
        print(json.dumps(summary))
    else:
        _print_tables(results, summary)


@contextmanager
def _services(folder: Path, postgresql_url: str | None) -> Iterator[Services]:
    urls = {SQLITE: f"sqlite:///{folder}/pagemill.db"} | ({POSTGRESQL: postgresql_url} if postgresql_url else {})
    for url in urls.values():
        schema.upgrade(url)
    with closing(connect(None, folder)):
        yield Services(embedded_url(folder), urls)


def _run_workers(services: Services, num_jobs: int, max_jobs: int, repeats: int) -> list[QueueRun]:
    runs = []
    for repeat in range(repeats):
        for system in SYSTEMS:  # alternating, so that a busy minute of the machine meets all
            url = services.database_url(system)
            if url is None:
                continue
            click.echo(f"run {repeat + 1} of {repeats}: {system}", err=True)
            if url:
                _empty(url)
            numbers = (str(num_jobs), str(max_jobs))
            runs.append(QueueRun(**_apart("worker", system, services.socket, url, *numbers)))
    return runs


def _run_depths(services: Services, depths: Sequence[int], repeats: int) -> list[DepthCost]:
    costs = []
    for depth in depths:
        click.echo(f"{depth} waiting", err=True)
        costs += [DepthCost(**_apart("depth", services.socket, str(depth))) for _ in range(repeats)]
    return costs


def _run_submissions(services: Services, folder: Path, num_jobs: int, repeats: int) -> list[SubmissionCost]:
    flags = {"none": ["--no-record"]}
    flags |= {kind: ["--record", "--database-url", url] for kind, url in services.database_urls.items()}
    costs = []
    for number in sorted({min(FEW_JOBS, num_jobs), num_jobs}):
        prompts = folder / f"{number}.jsonl"
        write_prompts(prompts, number)
        for repeat in range(repeats):
            for record, options in flags.items():
                click.echo(f"submission {repeat + 1} of {repeats}: {number} jobs, record: {record}", err=True)
                with closing(connect(services.redis_url, folder)) as connection:
                    connection.flushdb()
                if record in services.database_urls:
                    _empty(services.database_urls[record])
                costs.append(measure_submission(services.redis_url, prompts, number, record, options))
    return costs


def _empty(database_url: str) -> None:
    database = open_database(database_url)
    with writing(database) as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    database.dispose()


def _apart(*arguments: str) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    command = [sys.executable, "-m", "scripts.benchmarks.queue_bench", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _summary(results: Results, server: str) -> dict[str, Any]:
    def medians(runs: Sequence[Any], key: str, value: str) -> dict[str, float]:
        names = dict.fromkeys(getattr(run, key) for run in runs)
        return {
            str(name): round(median(getattr(run, value) for run in runs if getattr(run, key) == name), 3)
            for name in names
        }

    rates = medians(results.workers, "system", "jobs_per_second")
    most = max(cost.jobs for cost in results.submissions)
    many = [cost for cost in results.submissions if cost.jobs == most]
    return {
        "times_jobs_per_second": {name: round(rate / rates[PEER], 2) for name, rate in rates.items()},
        "round_trips_per_job": medians(results.workers, "system", "round_trips_per_job"),
        "worker_cpu_ms_per_job": medians(results.workers, "system", "worker_cpu_ms_per_job"),
        "us_per_job_by_depth": medians(results.depths, "waiting", "median_us_per_job"),
        "submissions_per_second": medians(many, "record", "jobs_per_second"),
        "goals": GOALS,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "server": server,
        "versions": {name: version(name) for name in ("rq", "redis", "sqlalchemy")},
    }


def _print_tables(results: Results, summary: Mapping[str, Any]) -> None:
    console = Console()
    table = Table("worker", "jobs/s", "times RQ's", "round trips/job", "CPU ms/job", "server CPU ms/job", "RSS MiB")
    for system in dict.fromkeys(run.system for run in results.workers):
        runs = [run for run in results.workers if run.system == system]
        table.add_row(
            system,
            f"{median(run.jobs_per_second for run in runs):.0f}",
            f"{summary['times_jobs_per_second'][system]:.1f}",
            f"{median(run.round_trips_per_job for run in runs):.2f}",
            f"{median(run.worker_cpu_ms_per_job for run in runs):.2f}",
            f"{median(run.server_cpu_ms_per_job for run in runs):.2f}",
            f"{max(run.peak_rss_bytes for run in runs) / 2**20:.0f}",
        )
    console.print(table)
    table = Table("jobs waiting", "claim, renew, acknowledge: us/job")
    for depth, cost in summary["us_per_job_by_depth"].items():
        table.add_row(depth, f"{cost:.0f}")
    console.print(table)
    table = Table("submitted", "recorded in", "jobs/s", "CPU ms/job", "RSS MiB")
    for jobs, record in dict.fromkeys((cost.jobs, cost.record) for cost in results.submissions):
        costs = [cost for cost in results.submissions if (cost.jobs, cost.record) == (jobs, record)]
        table.add_row(
            str(jobs),
            record,
            f"{median(cost.jobs_per_second for cost in costs):.0f}",
            f"{median(cost.cpu_ms_per_job for cost in costs):.3f}",
            f"{max(cost.peak_rss_bytes for cost in costs) / 2**20:.0f}",
        )
    console.print(table)
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    console.print(f"{summary['machine']}; server {summary['server']}, {versions}, Python {summary['python']}")


@click.group()
def measurements() -> None:
    """Single measurements, each printed as a line of JSON."""


@measurements.command()
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@click.argument("socket")
@click.argument("database_url")
@click.argument("jobs", type=int)
@click.argument("max_jobs", type=int)
def worker(system: str, socket: str, database_url: str, jobs: int, max_jobs: int) -> None:
    """Run one worker once."""
    print(json.dumps(run_system(system, socket, database_url, jobs, max_jobs).as_json()))


@measurements.command()
@click.argument("socket")
@click.argument("waiting", type=int)
def depth(socket: str, waiting: int) -> None:
    """Measure one depth once."""
    print(json.dumps(measure_depth(socket, waiting).as_json()))


if __name__ == "__main__":
    measurements()
