"""`pagemill status`: the queues and the workers, or the states of some jobs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Group
from rich.live import Live

from worker.cli.options import json_option, service_options
from worker.cli.output import is_terminal, print_json, print_json_line
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_store
from worker.cli.tables import draw_table, print_table
from worker.errors import PagemillError
from worker.queue.access import QueueAccess
from worker.queue.policy import QueuePolicy
from worker.queue.redis_jobs import find_redis_states, queue_names
from worker.records import JobState
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.sql.fleet import WorkerDetail
from worker.sql.lookups import BatchProgress
from worker.sql.store import JobStore
from worker.worker_state import WORKER_HOURS, worker_state

QUEUE_COLUMNS = ("queue", "paused", "waiting", "parked", "running", "delayed", "done", "failed", "cancelled", "dead")
WORKER_COLUMNS = (
    "worker",
    "state",
    "model",
    "device",
    "jobs done",
    "failed",
    "output tokens",
    "busy",
    "last heard of",
    "engine answered",
)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue: what has not ended is Redis's to tell, the rest SQL's."""

    queue: str
    paused: bool
    waiting: int
    parked: int  # their tenants are at their limits
    running: int
    delayed: int  # until their time comes, or a back-off is over
    done: int
    failed: int
    cancelled: int
    dead: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker, as SQL last heard of it."""

    worker: str
    state: str  # running, stuck (it beats, its engine does not answer), silent, stopped
    model: str
    device: str
    jobs_done: int
    jobs_failed: int
    completion_tokens: int
    busy_share: float | None  # of the worker's time so far
    last_heartbeat_at: datetime
    engine_answered_at: datetime | None

    def cells(self) -> tuple[object, ...]:
        """Return what the table shows."""
        busy = None if self.busy_share is None else f"{self.busy_share:.0%}"
        return tuple(busy if name == "busy_share" else getattr(self, name) for name in self.__slots__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that `status` shows at one time."""

    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    batch: BatchProgress | None

    def tables(self) -> Iterator[tuple[str, tuple[str, ...], list[tuple[object, ...]]]]:
        """Yield title, columns and rows of each table."""
        yield "Queues", QUEUE_COLUMNS, [tuple(getattr(row, name) for name in row.__slots__) for row in self.queues]
        yield "Workers", WORKER_COLUMNS, [row.cells() for row in self.workers]
        if self.batch is not None:
            rows: list[tuple[object, ...]] = [(state, self.batch.states.get(state, 0)) for state in JobState]
            rows.append(("size", self.batch.size))
            yield f"Batch {self.batch.batch_id}", ("state", "jobs"), rows


@click.command()
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--batch", help="Show the progress of this batch too.")
@click.option("--watch", is_flag=True, help="Repeat until interrupted.")
@click.option("--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between repeats.")
@service_options
@json_option
def status(
    job_ids: tuple[str, ...], batch: str | None, watch: bool, interval: float, as_json: bool, **flags: Any
) -> None:
    """Show the queues and the workers; with IDs, the state of each of these jobs.

    \b
    Examples:
      pagemill status --watch
      pagemill status --batch nightly
      pagemill status 0123456789abcdef0123456789abcdef --json
    """
    settings = load_settings(flags)
    if job_ids:
        _print_states(settings, job_ids, as_json=as_json)
        return
    snapshots = _snapshots(settings, batch, interval if watch else None)
    if as_json:
        for snapshot in snapshots:
            print_json_line(snapshot) if watch else print_json(snapshot)
    elif watch and is_terminal():
        with Live(auto_refresh=False, screen=True) as live:
            for snapshot in snapshots:
                live.update(Group(*(draw_table(*table) for table in snapshot.tables())), refresh=True)
    else:
        for snapshot in snapshots:
            for table in snapshot.tables():
                print_table(*table)


def take_snapshot(settings: Settings, access: QueueAccess, store: JobStore, batch: str | None) -> Snapshot:
    """Read the status once. Raises PagemillError for a batch that SQL does not know."""
    progress = store.batch(batch) if batch else None
    if batch and progress is None:
        raise PagemillError(f"no batch {batch} is known")
    ended = {(count.queue, count.state): count.jobs for count in store.state_counts()}
    seen = {*queue_names(access.connection), *(queue for queue, _ in ended)}
    policy = QueuePolicy(access.connection)
    paused = policy.paused()
    names = sorted({*seen, *settings.queues, *paused})
    parked = policy.parked(names)
    queues = tuple(
        QueueStatus(
            queue=name,
            paused=name in paused,
            waiting=counts.waiting,
            parked=parked[name],
            running=counts.running,
            delayed=counts.delayed,
            done=ended.get((name, JobState.DONE), 0),
            failed=ended.get((name, JobState.FAILED), 0),
            cancelled=ended.get((name, JobState.CANCELLED), 0),
            dead=ended.get((name, JobState.DEAD), 0),
        )
        for name, counts in access.counts(names).items()
    )
    now = datetime.now(UTC)
    workers = tuple(
        _worker_status(worker, now, settings)
        for worker in store.workers()
        if (now - worker.last_heartbeat_at).total_seconds() < WORKER_HOURS * 3600
    )
    return Snapshot(queues, workers, progress)


def _snapshots(settings: Settings, batch: str | None, interval: float | None) -> Iterator[Snapshot]:
    """Yield the status once, or every `interval` seconds for ever."""
    with opened_queue(settings) as connection, opened_store(settings) as store:
        access = QueueAccess(connection)
        yield take_snapshot(settings, access, store, batch)
        while interval is not None:
            time.sleep(interval)
            yield take_snapshot(settings, access, store, batch)


def _worker_status(worker: WorkerDetail, now: datetime, settings: Settings) -> WorkerStatus:
    return WorkerStatus(
        worker=worker.record.name,
        state=worker_state(worker, now, settings),
        model=worker.record.model,
        device=worker.record.device,
        jobs_done=worker.counters.jobs_done,
        jobs_failed=worker.counters.jobs_failed,
        completion_tokens=worker.counters.completion_tokens,
        busy_share=worker.busy_share,
        last_heartbeat_at=worker.last_heartbeat_at,
        engine_answered_at=worker.engine_answered_at,
    )


def _print_states(settings: Settings, job_ids: tuple[str, ...], *, as_json: bool) -> None:
    """Print each job's state: SQL's, or Redis's for a job that no worker has claimed yet."""
    with opened_store(settings) as store:
        states = dict(store.states(job_ids))
    unseen = [job_id for job_id in job_ids if job_id not in states]
    if unseen:
        with opened_queue(settings) as connection:
            states |= find_redis_states(connection, unseen)
    unknown = [job_id for job_id in job_ids if job_id not in states]
    if unknown:
        raise PagemillError(f"no job {unknown[0]}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""))
    rows = [(job_id, states[job_id]) for job_id in dict.fromkeys(job_ids)]
    print_json(dict(rows)) if as_json else print_table("Jobs", ("job", "state"), rows)
