"""One set of services for one fault: a queue, a database, worker processes, and what was accepted there."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import redis
from rq import Queue
from sqlalchemy import Engine, make_url

from scripts.fault_table.nursery import Nursery, WorkerProcess
from scripts.fault_table.postgresql import NoServer, connect_to_server, create_database, drop_database
from scripts.fault_table.redis_server import RedisServer, running_server
from scripts.fault_table.tally import Tally, count_jobs, count_left
from worker.jobs import FUNCTION_NAME
from worker.queue.submission import DEFAULT_QUEUE, NO_TIMEOUT, enqueue, prepare, submit
from worker.records import JobState
from worker.sql import schema
from worker.sql.database import open_database
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore

POLL_SECONDS = 0.02
WAIT_SECONDS = 240.0  # far above what anything takes that is not a fault
RESTARTABLE = frozenset({-9, 70, 75})  # exit codes of a worker that a supervisor starts again: killed, or told so


class RowFailed(Exception):
    """The row cannot go on; the message says what did not come about, `details` what the workers said."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


@dataclass
class World:
    """Services, and the processes that use them."""

    folder: Path
    server: RedisServer
    database_url: str
    environ: Mapping[str, str]
    nursery: Nursery
    database: Engine
    connection: redis.Redis
    stack: ExitStack  # of what lives as long as the world
    accepted: list[str] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def store(self) -> JobStore:
        return JobStore(self.database)

    def submit(self, *jobs: Mapping[str, Any], connection: redis.Redis | None = None) -> tuple[str, ...]:
        """Submit jobs as the command line does, recorded in SQL first; what is accepted is counted, errors or not."""
        before = len(self.accepted)
        with opened_recorder(self.database_url) as recorder:
            for ids in enqueue(connection or self.connection, prepare(jobs), recorder=recorder):
                self.accepted += ids
        return tuple(self.accepted[before:])

    def submit_unrecorded(self, *jobs: Mapping[str, Any]) -> tuple[str, ...]:
        """Submit jobs to Redis only; they count as accepted."""
        ids = submit(self.connection, jobs)
        self.accepted += ids
        return ids

    def submit_delayed(self, *jobs: Mapping[str, Any], seconds: float) -> None:
        """Submit jobs with nothing but RQ, to run in a while; they count as accepted."""
        queue = Queue(DEFAULT_QUEUE, connection=self.connection, serializer="json")
        for job in jobs:
            delayed = queue.enqueue_in(timedelta(seconds=seconds), FUNCTION_NAME, dict(job), job_timeout=NO_TIMEOUT)
            self.accepted.append(delayed.id)

    @property
    def sqlite_file(self) -> Path:
        database = make_url(self.database_url).database
        assert database is not None, "it is SQLite"
        return Path(database)

    def move_sqlite(self, folder: Path) -> None:
        """Move the database elsewhere; before anybody uses it."""
        self.database.dispose()
        self.database_url = f"sqlite:///{shutil.move(self.sqlite_file, folder)}"
        self.database = open_database(self.database_url)
        self.stack.callback(self.database.dispose)
        self.environ = {**self.environ, "PAGEMILL_DATABASE_URL": self.database_url}

    def start_worker(self, *flags: str, **settings: object) -> WorkerProcess:
        """Start `pagemill worker`; `settings` go before those of the world."""
        changed = {f"PAGEMILL_{name.upper()}": str(value) for name, value in settings.items()}
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        worker = self.nursery.start(["worker", "--no-restart", *flags], {**self.environ, **changed}, self.folder, log)
        self.workers.append(worker)
        return worker

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> float:
        """Wait until `condition` is true; return after how many seconds it was. Raises RowFailed."""
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > seconds:
                raise RowFailed(f"not within {seconds:g} s: {what}", self.last_words())
            time.sleep(POLL_SECONDS)
        return time.monotonic() - started

    def wait_for_exit(self, worker: WorkerProcess, seconds: float = WAIT_SECONDS) -> int:
        """Return a worker's exit code. Raises RowFailed when it does not end."""
        code = worker.wait(seconds)
        if code is None:
            raise RowFailed(f"the worker does not end within {seconds:g} s", self.last_words())
        return code

    def wait_for_ends(self, seconds: float = WAIT_SECONDS) -> float:
        """Wait until every accepted job has ended in SQL and nothing is left in the queue."""

        def have_ended() -> bool:
            return not self.tally().lost and not count_left(self.connection)

        return self.wait_for(have_ended, "every accepted job has ended", seconds)

    def finish(self, seconds: float = WAIT_SECONDS, **settings: object) -> None:
        """Start workers, each one after the last was killed or asked for it, until every accepted job has ended."""
        deadline = time.monotonic() + seconds
        worker = self.start_worker(**settings)
        while self.tally().lost or count_left(self.connection):
            if worker.exit_code is not None:
                if worker.exit_code not in RESTARTABLE:
                    raise RowFailed(f"the worker ended with {worker.exit_code}", self.last_words())
                worker = self.start_worker(**settings)
            if time.monotonic() > deadline:
                raise RowFailed(f"not within {seconds:g} s: every accepted job has ended", self.last_words())
            time.sleep(POLL_SECONDS)
        worker.kill()

    def count(self, state: JobState) -> int:
        """Return how many of the accepted jobs SQL has in a state."""
        return sum(found is state for found in self.store.states(self.accepted).values())

    def tally(self) -> Tally:
        return count_jobs(self.database, self.accepted)

    def last_words(self) -> str:
        """Return the ends of the workers' logs."""
        logs = [(worker.log.name, worker.log_text().splitlines()[-6:]) for worker in self.workers[-3:]]
        return "\n".join(f"{name}: {line}" for name, lines in logs for line in lines)

    def kill_workers(self) -> None:
        for worker in self.workers:
            worker.kill()


class Worlds:
    """Makes worlds, each in an empty folder on services of its own. From any thread."""

    def __init__(self, folder: Path, model: Path, nursery: Nursery) -> None:
        self._folder = folder
        self._model = model
        self._nursery = nursery
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._postgresql: Engine | None = None
        self._sqlite_template = folder / "template.db"
        schema.upgrade(f"sqlite:///{self._sqlite_template}")

    def close(self) -> None:
        self._stack.close()

    @contextmanager
    def open(
        self,
        binary: Path,
        *,
        postgresql: bool = False,
        server_options: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Iterator[World]:
        """Open a world; its processes are killed when the block ends. `settings` are its workers'.

        Raises NoServer where PostgreSQL is asked for and is not there.
        """
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        with ExitStack() as stack:
            url = stack.enter_context(
                self._postgresql_database(folder) if postgresql else self._sqlite_database(folder)
            )
            server = stack.enter_context(running_server(binary, folder / "q", **(server_options or {})))
            database = open_database(url)
            stack.callback(database.dispose)
            connection = stack.enter_context(closing(server.connect()))
            environ = self._environ(folder, server.url, url, settings)
            world = World(folder, server, url, environ, self._nursery, database, connection, stack)
            stack.callback(world.kill_workers)
            yield world
        shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _sqlite_database(self, folder: Path) -> Iterator[str]:
        yield f"sqlite:///{shutil.copy(self._sqlite_template, folder / 'pagemill.db')}"

    @contextmanager
    def _postgresql_database(self, folder: Path) -> Iterator[str]:
        server = self._postgresql_server()
        name = f"{self._postgresql_template}_{folder.name}"
        yield create_database(server, name, template=self._postgresql_template)
        drop_database(server, name)

    @property
    def _postgresql_template(self) -> str:
        return f"pagemill_faults_{os.getpid()}"

    @property
    def has_postgresql(self) -> bool:
        try:
            self._postgresql_server()
        except NoServer:
            return False
        return True

    def _postgresql_server(self) -> Engine:
        """Connect once, and make a migrated database to copy."""
        with self._lock:
            if self._postgresql is None:
                server = connect_to_server()
                with ExitStack() as stack:  # of what is undone where it does not all come about
                    stack.callback(server.dispose)
                    url = create_database(server, self._postgresql_template)
                    stack.callback(drop_database, server, self._postgresql_template)
                    schema.upgrade(url)
                    self._stack.push(stack.pop_all())
                self._postgresql = server
            return self._postgresql

    def _environ(
        self, folder: Path, redis_url: str, database_url: str, settings: Mapping[str, object]
    ) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
        own = {
            "redis_url": redis_url,
            "database_url": database_url,
            "data_dir": folder / "data",
            "model": self._model,
            "device": "cpu",
            "dtype": "float32",
            "kv_memory_bytes": "16MB",
            "max_jobs": 32,
            "max_num_seqs": 32,
            **settings,
        }
        return {**inherited, **{f"PAGEMILL_{name.upper()}": str(value) for name, value in own.items()}}
