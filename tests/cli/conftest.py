"""Fixtures of the command line's tests: real commands on a real queue and a real database."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner, Result

from tests.sql.builders import worker_of
from worker.cli.main import cli
from worker.queue.connection import connect
from worker.queue.embedded import embedded_url
from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, Claim, JobStats, Outcome
from worker.running.outcomes import acknowledgement
from worker.sql.database import open_database
from worker.sql.store import JobStore
from worker.sql.tables import utc_now

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = "import sys; from worker.cli.main import main; main()"

Run = Callable[..., Result]
RunProcess = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A command that runs in this process sets the root logger up; the next test's is as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def empty_queue(embedded_data_dir: Path) -> Iterator[redis.Redis]:
    """The session's embedded queue, emptied."""
    with closing(connect(None, embedded_data_dir)) as connection:
        connection.flushdb()
        yield connection
        connection.flushdb()


@pytest.fixture
def environ(embedded_data_dir: Path, tmp_path: Path, migrated_sqlite_file: Path) -> dict[str, str]:
    """The variables of a configured machine: the emptied queue and a migrated SQLite file, nothing else."""
    shutil.copy(migrated_sqlite_file, tmp_path)
    return {
        "PAGEMILL_REDIS_URL": embedded_url(embedded_data_dir),
        "PAGEMILL_DATABASE_URL": f"sqlite:///{tmp_path}/pagemill.db",
        "PAGEMILL_DATA_DIR": str(tmp_path / "data"),
    }


@pytest.fixture
def run(empty_queue: redis.Redis, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in an empty folder; return click's result."""
    for name in [name for name in os.environ if name.startswith("PAGEMILL_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(cli, arguments, input=stdin, prog_name="pagemill")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def run_process(environ: dict[str, str], tmp_path: Path) -> RunProcess:
    """Run a command as a process of its own, in an empty folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}

    def run_process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            env={**inherited, **environ, "PYTHONPATH": str(ROOT), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_process


@pytest.fixture
def store(environ: dict[str, str]) -> Iterator[JobStore]:
    """The store that the commands see."""
    engine = open_database(environ["PAGEMILL_DATABASE_URL"])
    yield JobStore(engine)
    engine.dispose()


@dataclass(frozen=True)
class CannedWorker:
    """Claims jobs and ends them with prepared answers: all of a worker but its engine."""

    queue: JobQueue
    store: JobStore

    def claim(self, limit: int = 100) -> tuple[Claim, ...]:
        """Take waiting jobs of the queues `default` and `bulk`, and begin their attempts."""
        claims = self.queue.claim(["default", "bulk"], limit).claims
        self.store.begin_attempts(claims, self.queue.worker_name)
        return claims

    def end(self, claim: Claim, text: str | None, error: str | None = None, **changes: Any) -> None:
        """End a job: done with `text`, or failed where that is None, with changes to its outcome."""
        outcome = Outcome(
            claim=claim,
            state=AttemptState.FAILED if text is None else AttemptState.DONE,
            ended_at=datetime.now(UTC),
            text=text,
            token_ids=() if text is None else (1, 2, 3),
            finish_reason=None if text is None else "stop",
            prompt_tokens=10,
            completion_tokens=0 if text is None else 3,
            error_code="context_length" if text is None else None,
            error_message=error,
            stats=None if text is None else CANNED_STATS,
        )
        outcome = replace(outcome, **changes)
        self.store.finish_attempts([outcome])
        self.queue.acknowledge([acknowledgement(outcome)])

    def answer(self, text: str | None, error: str | None = None) -> int:
        """Claim everything and end it; return how many jobs that was."""
        claims = self.claim()
        for claim in claims:
            self.end(claim, text, error)
        return len(claims)


CANNED_STATS = JobStats(
    queue_ms=1.0,
    tokenize_ms=2.0,
    ttft_ms=30.0,
    itl_mean_ms=4.0,
    itl_p99_ms=5.0,
    e2e_ms=60.0,
    kv_blocks_peak=7,
    kv_bytes_peak=8192,
    kv_block_seconds=0.5,
    prefix_hit_tokens=4,
    preemptions=0,
    memory_peak_bytes=2**30,
)


@pytest.fixture
def canned_worker(empty_queue: redis.Redis, store: JobStore) -> CannedWorker:
    """A worker without an engine on the commands' queue and database."""
    return CannedWorker(JobQueue(empty_queue, "canned", lease_seconds=60.0), store)


@pytest.fixture
def live_worker(store: JobStore) -> None:
    """A worker that SQL knows as alive, serving the model smollm2."""
    store.register_worker(worker_of("canned", started_at=utc_now()))


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and subcommand with its full name."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", command.commands[inner]) for inner in command.commands)
