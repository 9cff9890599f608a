"""What the batch commands share: their options, the file of requests, and what they know of the workers."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import click
import redis
from sqlalchemy import Engine

from worker.batch.lines import RequestRules
from worker.batch.records import BatchFile, BatchStatus
from worker.batch.store import BatchStore
from worker.cli.options import QueueName, Span, TenantName
from worker.cli.output import message
from worker.cli.progress import StatusLine, TimedProgress
from worker.errors import PagemillError, ServiceUnavailable
from worker.jobs import DEFAULT_TENANT
from worker.model_shape import short_name
from worker.queue.policy import QueuePolicy
from worker.queue.registered import draining
from worker.settings_model import Settings
from worker.sql.database import open_database
from worker.sql.fleet import WorkerDetail
from worker.sql.store import JobStore
from worker.worker_state import running_workers

P = ParamSpec("P")
R = TypeVar("R")

CHECKED_LINES = 500  # between two signs of life while a file is checked


def request_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that say what becomes of the requests of a file."""
    options = (
        click.option("--queue", type=QueueName(), help="Default: the first of the setting queues."),
        click.option(
            "--tenant", type=TenantName(), default=DEFAULT_TENANT, show_default=True, help="Whose requests these are."
        ),
        click.option("--model", help="Have this model answer all of them, whatever model they name."),
        click.option(
            "--max-tokens",
            type=click.IntRange(1),
            help="Longest output of requests that do not say.  [default: OpenAI's: chats fill the context, text "
            "completions have 16]",
        ),
        click.option("--strict", is_flag=True, help="Run nothing if a single line is at fault."),
    )
    for option in reversed(options):
        command = option(command)
    return command


window_option = click.option(
    "--window", type=Span(), help="What is not done by then fails as expired: 90m, 24h, 7d.  [default: no limit]"
)

timeout_option = click.option(
    "--timeout",
    type=Span(),
    default="10m",
    show_default=True,
    help="Give up, with exit code 69, when SQL or Redis is away for so long. The batch itself goes on.",
)


@contextmanager
def opened_requests(path: Path) -> Iterator[IO[bytes]]:
    """Give a file of requests, which is read more than once. Raises PagemillError when that cannot be."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise PagemillError(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise PagemillError(f"{path}: is no regular file; it is read more than once, so save it first")
        yield file


@contextmanager
def opened_batches(settings: Settings) -> Iterator[BatchStore]:
    """Give the store of batches and close its connections afterwards."""
    engine = open_database(settings.sql_url())
    try:
        yield BatchStore(engine)
    finally:
        engine.dispose()


def rules_for(settings: Settings, engine: Engine | None, max_tokens: int | None, model: str | None) -> RequestRules:
    """Return the rules by which requests are read, with the models that are known to be served."""
    return RequestRules(max_tokens=max_tokens, model=model, served=_served(settings, engine))


def _served(settings: Settings, engine: Engine | None) -> frozenset[str] | None:
    """Return the names of the models of live workers and of the settings; None where there is neither."""
    names = set() if engine is None else {worker.record.model for worker in _live_workers(settings, engine)}
    if settings.model is not None:
        names.add(short_name(settings.model))
    return frozenset(names) or None


def _live_workers(settings: Settings, engine: Engine) -> list[WorkerDetail]:
    return running_workers(JobStore(engine).workers(), datetime.now(UTC), settings)


@dataclass(frozen=True)
class Watch:
    """Says why the jobs of a queue may never end, as far as this user may know."""

    settings: Settings
    engine: Engine
    connection: redis.Redis
    queue: str

    def complaint(self) -> str | None:
        """Return what stands in the way, or None."""
        with suppress(ServiceUnavailable):
            if QueuePolicy(self.connection).is_paused(self.queue):
                return f"queue {self.queue} is paused: `pagemill resume {self.queue}` lets its jobs start"
            workers = [worker.record.name for worker in _live_workers(self.settings, self.engine)]
            if not workers:
                return "no worker is alive: start one with `pagemill up` or `pagemill worker`, or wait for one"
            if not draining(self.connection, self.queue, workers):
                return f"no worker drains queue {self.queue}: start one with `pagemill worker --queues {self.queue}`"
        return None


class Screen:
    """A listener that tells the user on standard error."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called now and then; what it raises ends what is listened to."""
        self._check = check
        self._line = StatusLine()
        self._progress = TimedProgress("requests")

    def notice(self, text: str) -> None:
        """Print a line; the bar comes again below it."""
        self.clear()
        message(text)

    def checked(self, lines: int) -> None:
        """Show how many lines were read."""
        self._check()
        if lines % CHECKED_LINES == 0:
            self._line.show(f"{lines:,} lines checked")

    def submitted(self, jobs: int, total: int) -> None:
        """Show how many jobs were submitted."""
        self._check()
        self._line.show(f"{jobs:,}/{total:,} requests submitted")

    def went_on(self, completed: int, failed: int, total: int) -> None:
        """Show how many of the requests have ended."""
        self._check()
        self._progress.draw(completed + failed, failed, total)

    def clear(self) -> None:
        """Free the line for other output."""
        self._progress.clear()


def write_lines(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write lines to standard output, or to a file that is there as a whole or not at all."""
    if path is None:
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(lines)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise PagemillError(f"{path}: cannot be written: {error.strerror}") from None


def described(status: BatchStatus) -> str:
    """Return a batch and how far it is, in a line."""
    counts, batch = status.counts, status.batch
    total = "?" if counts.total is None else f"{counts.total:,}"
    failed = f", {counts.failed:,} failed" if counts.failed else ""
    return f"batch {batch.batch_id} is {batch.state.value}: {counts.completed:,} of {total} done{failed}"


def status_fields(status: BatchStatus) -> dict[str, object]:
    """Return what the commands show of a batch."""
    batch: BatchFile = status.batch
    return {
        "batch": batch.batch_id,
        "state": batch.state,
        "requests": status.counts.total,
        "completed": status.counts.completed,
        "failed": status.counts.failed,
        "endpoint": batch.endpoint,
        "input": batch.input_name,
        "output": batch.output_name,
        "queue": batch.queue,
        "tenant": batch.tenant,
        "failure": batch.failure,
        "created": batch.created_at,
        "expires": batch.expires_at,
        "submitted": batch.in_progress_at,
        "ended": batch.completed_at or batch.failed_at or batch.expired_at or batch.cancelled_at,
    }
