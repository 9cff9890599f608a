"""Pagemill as a user has it: commands and workers as processes of their own, on services of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from worker.queue.connection import connect
from worker.records import JobState
from worker.sql.database import open_database
from worker.sql.store import JobStore

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = "import sys; from worker.cli.main import main; main()"
WAIT_SECONDS = 120.0  # far above what anything here takes, on a busy machine too

# Leases short enough to see them run out, but not under a machine that is busy with something else.
WORKER_SETTINGS = {
    "PAGEMILL_DEVICE": "cpu",
    "PAGEMILL_MAX_JOBS": "8",
    "PAGEMILL_MAX_MODEL_LEN": "512",
    "PAGEMILL_KV_MEMORY_BYTES": "100MB",
    "PAGEMILL_LEASE_SECONDS": "4",
    "PAGEMILL_BEAT_SECONDS": "0.5",
    "PAGEMILL_SWEEP_SECONDS": "0.5",
}


@dataclass
class WorkerProcess:
    """A running `pagemill worker`."""

    process: subprocess.Popen[str]
    log: Path

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Return its exit code."""
        return self.process.wait(WAIT_SECONDS)


@dataclass(frozen=True)
class Machine:
    """One set of services, and the commands that use them."""

    folder: Path
    environ: Mapping[str, str]
    store: JobStore
    redis_url: str | None

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", PROGRAM, *arguments]

    def run(self, *arguments: str, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env={**self.environ, **variables},
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
        )

    def read(self, *arguments: str, stdin: str | None = None) -> str:
        """Run a command that must succeed; return what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read_json(self, *arguments: str) -> Any:
        """Run a command that must succeed and print one JSON document."""
        return json.loads(self.read(*arguments, "--json"))

    @contextmanager
    def worker(self, *flags: str) -> Iterator[WorkerProcess]:
        """Run a worker; it is killed when the block ends, if it has not ended. Without flags it has no parent process
        of its own, so that a signal to this process is one to the worker."""
        log = self.folder / f"worker-{time.monotonic_ns()}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                self.command("worker", *(flags or ["--no-restart"])),
                env=self.environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stderr=file,
                text=True,
            )
        worker = WorkerProcess(process, log)
        try:
            yield worker
        finally:
            worker.kill()

    def submit(self, *jobs: Mapping[str, Any]) -> list[str]:
        """Submit jobs with `pagemill submit`; return their ids."""
        lines = "\n".join(json.dumps(job) for job in jobs)
        return self.read("submit", "--jsonl", "-", stdin=lines).split()

    def connect(self) -> redis.Redis:
        """Return a connection to the queue."""
        return connect(self.redis_url, Path(self.environ["PAGEMILL_DATA_DIR"]))

    def count(self, job_ids: list[str], state: JobState) -> int:
        """Return how many of the jobs SQL has in a state."""
        return sum(found is state for found in self.store.states(job_ids).values())


@contextmanager
def open_machine(folder: Path, model: Path, database_url: str, redis_url: str | None) -> Iterator[Machine]:
    """Set a machine up in an empty folder: a model, a migrated database, an empty queue."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    data_dir = folder / "data"
    data_dir.mkdir()
    converted = model.parent / "converted"  # from GGUF, once for all tests and all runs of them
    converted.mkdir(exist_ok=True)
    (data_dir / "models").symlink_to(converted)
    environ = {
        **inherited,
        **WORKER_SETTINGS,
        "PAGEMILL_DATA_DIR": str(data_dir),
        "PAGEMILL_DATABASE_URL": database_url,
        "PAGEMILL_MODEL": str(model),
        "PYTHONPATH": str(ROOT),
        **({} if redis_url is None else {"PAGEMILL_REDIS_URL": redis_url}),
    }
    database = open_database(database_url)
    machine = Machine(folder, environ, JobStore(database), redis_url)
    try:
        machine.read("db", "upgrade")
        yield machine
    finally:
        database.dispose()


def eventually(condition: Callable[[], object], worker: WorkerProcess | None = None) -> None:
    """Wait until `condition` returns something true; fail at once when the worker that is to bring it about ends."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {WAIT_SECONDS:g} s"
        if worker is not None and worker.process.poll() is not None:
            raise AssertionError(f"the worker ended with {worker.process.returncode}:\n{worker.log.read_text()}")
        time.sleep(0.05)
