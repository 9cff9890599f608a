"""Rows 7, 8 and 9: a database that is down, locked or out of room."""

import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path

from sqlalchemy import make_url

from scripts.fault_table.full_disk import small_disk
from scripts.fault_table.proxy import proxying
from scripts.fault_table.rows import STEP_SLEEP, Trial, free_port, prompts
from scripts.fault_table.world import World
from worker.queue.access import QueueAccess
from worker.records import JobState

MAX_JOBS = 8
LONG = {"prompt": "Tell me everything.", "max_tokens": 4000, "ignore_eos": True}  # it outlasts the outage
PAUSE_SECONDS = 1.0  # for what is under way when the outage begins


class Outage:
    """What is watched while SQL takes nothing: the engine steps, claims stop, nothing is acknowledged."""

    def __init__(self, trial: Trial, world: World) -> None:
        self._trial = trial
        self._world = world
        self._queue = QueueAccess(world.connection)
        self._address = f"127.0.0.1:{free_port()}"
        (self._long_job,) = world.submit(LONG)

    def prepare(self, **settings: object) -> None:
        """Start a worker; let the long job run, and some others end."""
        self._world.start_worker(health_address=self._address, **settings)
        self._world.submit(*prompts(10, max_tokens=20))
        self._world.wait_for(lambda: self._world.count(JobState.DONE) == 10, "10 jobs are done")
        self._queue.watch(self._long_job, 600)
        self._world.wait_for(self._num_deltas, "the long job streams its tokens")
        self._world.wait_for(self._is_healthy, "the health endpoint says that all is well")

    def last(self, seconds: float) -> None:
        """Be called when SQL has just gone; returns when the outage has lasted for so many seconds."""
        self._world.submit_unrecorded(*prompts(40, max_tokens=20))
        time.sleep(PAUSE_SECONDS)
        acknowledged, deltas = self._acknowledged(), self._num_deltas()
        time.sleep(seconds - PAUSE_SECONDS)
        self._trial.check(self._acknowledged() == acknowledged, "jobs were acknowledged without SQL")
        self._trial.check(self._num_deltas() > deltas, "the engine stopped stepping")
        self._trial.check(not self._is_healthy(), "the health endpoint says that all is well")
        held = self._world.connection.zcard("pagemill:leases:default")
        self._trial.check(held <= MAX_JOBS, f"{held} jobs are held, more than the {MAX_JOBS} allowed")
        self._trial.note(
            f"outage of {seconds:g} s: {held} of 41 jobs held, none acknowledged, the engine stepped on, health red"
        )

    def end(self) -> None:
        """Cancel the long job, and wait until everything has ended."""
        self._queue.cancel(self._long_job)
        seconds = self._world.wait_for_ends()
        self._trial.check(self._world.workers[-1].exit_code is None, "the worker has ended")
        self._world.wait_for(self._is_healthy, "the health endpoint says that all is well again")
        self._trial.note(f"all ended {seconds:.1f} s after it")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/healthz", timeout=10) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return False

    def _acknowledged(self) -> int:
        return int(self._world.connection.zcard("rq:finished:default"))

    def _num_deltas(self) -> int:
        return int(self._world.connection.xlen(f"pagemill:tokens:{self._long_job}"))


def cut_postgresql(trial: Trial) -> None:
    """Row 7. The way to PostgreSQL is cut: its server serves others."""
    with trial.world(postgresql=True, max_jobs=MAX_JOBS, failpoints=STEP_SLEEP) as world:
        url = make_url(world.database_url)
        with proxying((url.host or "127.0.0.1", url.port or 5432), ("127.0.0.1", 0)) as proxy:
            assert not isinstance(proxy.address, str), "it was given a host and a port"
            host, port = proxy.address
            through = url.set(host=host, port=port).render_as_string(hide_password=False)
            outage = Outage(trial, world)
            outage.prepare(database_url=through)
            proxy.cut()
            outage.last(trial.scale.pick(5, 30))
            proxy.mend()
            outage.end()


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Hold the lock of an SQLite file, as a report in a transaction of its own would."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


def lock_sqlite(trial: Trial) -> None:
    """Row 8. Somebody holds SQLite's write lock."""
    with trial.world(max_jobs=MAX_JOBS, failpoints=STEP_SLEEP) as world:
        outage = Outage(trial, world)
        outage.prepare()
        with write_lock(world.sqlite_file):
            outage.last(trial.scale.pick(7, 30))
        outage.end()


def fill_disk(trial: Trial) -> None:
    """Row 9. The disk of the database and of the worker's own folder is full."""
    with small_disk() as disk, trial.world(max_jobs=MAX_JOBS, failpoints=STEP_SLEEP) as world:
        world.move_sqlite(disk.folder)
        outage = Outage(trial, world)
        outage.prepare(data_dir=disk.folder / "data")
        trial.note(f"the disk is {disk.kind}")
        with disk.filled(world.workers[-1].pid):
            outage.last(trial.scale.pick(5, 20))
        outage.end()
