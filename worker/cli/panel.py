"""What a worker's progress looks like on standard error: a bar, a live panel, or lines where that is no terminal."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from worker.cli.output import message
from worker.cli.tables import draw_table
from worker.errors import PagemillError
from worker.progress import Panel, ReadProgress, WorkerProgress
from worker.settings_model import Settings
from worker.settings_types import LogFormat

Show = Callable[[WorkerProgress], None]

REFRESH_SECONDS = 0.25
LINE_SECONDS = 5.0  # between two lines where there is no terminal
RATE_SECONDS = 5.0  # span over which tokens per second are measured


@contextmanager
def no_panel(_read: ReadProgress) -> Iterator[None]:
    """Show nothing: the log is enough."""
    yield


def panel_for(settings: Settings, panel: Panel) -> Panel:
    """Return the panel, or none where standard error is a log for machines."""
    return panel if settings.log_format is LogFormat.TEXT else no_panel


@contextmanager
def burst_bar(read: ReadProgress) -> Iterator[None]:
    """Show a bar of the jobs that have ended, until the context does."""
    if not sys.stderr.isatty():
        with _repeating(read, _LinePrinter().show, LINE_SECONDS):
            yield
        return
    rate = TokenRate()
    columns = (TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("jobs", total=None, note="")

        def show(progress: WorkerProgress) -> None:
            _update_bar(bar, task, progress, rate.update(progress))

        with _repeating(read, show, REFRESH_SECONDS):
            yield


@contextmanager
def live_panel(read: ReadProgress) -> Iterator[None]:
    """Show queue depths, running requests, KV use, tokens per second and ended jobs, until the context ends."""
    if not sys.stderr.isatty():
        with _repeating(read, _LinePrinter().show, LINE_SECONDS):
            yield
        return
    rate = TokenRate()
    with Live(console=Console(stderr=True), auto_refresh=False) as live:

        def show(progress: WorkerProgress) -> None:
            live.update(draw_panel(progress, rate.update(progress)), refresh=True)

        with _repeating(read, show, REFRESH_SECONDS):
            yield


def draw_panel(progress: WorkerProgress, tokens_per_s: float) -> Group:
    """Return the panel's two tables."""
    share = progress.blocks_held / progress.num_blocks if progress.num_blocks else 0.0
    worker = draw_table(
        "Worker",
        ("held", "running", "done", "failed", "output tokens", "tokens/s", "KV blocks in use", "cached"),
        [
            (
                progress.held,
                progress.running,
                progress.jobs_done,
                progress.jobs_failed,
                progress.output_tokens,
                round(tokens_per_s, 1),
                f"{progress.blocks_held:,} of {progress.num_blocks:,} ({share:.0%})",
                progress.blocks_cached,
            )
        ],
    )
    return Group(draw_table("Queues", ("queue", "waiting"), list(progress.waiting.items())), worker)


class TokenRate:
    """Output tokens per second over the last `RATE_SECONDS`, or somewhat longer where readings are rare."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def update(self, progress: WorkerProgress, now: float | None = None) -> float:
        """Take a reading at `now` (seconds, monotonic) and return the rate."""
        now = time.monotonic() if now is None else now
        self._readings.append((now, progress.output_tokens))
        while len(self._readings) > 1 and now - self._readings[1][0] >= RATE_SECONDS:
            self._readings.popleft()
        then, tokens = self._readings[0]
        return (progress.output_tokens - tokens) / (now - then) if now > then else 0.0


class _LinePrinter:
    """One line whenever something has changed."""

    def __init__(self) -> None:
        self._rate = TokenRate()
        self._last: WorkerProgress | None = None

    def show(self, progress: WorkerProgress) -> None:
        rate = self._rate.update(progress)
        if progress != self._last:
            message(
                f"{progress.jobs_ended}/{progress.jobs_known} jobs ended ({progress.jobs_failed} failed), "
                f"{progress.running} running, {rate:.0f} output tokens/s"
            )
        self._last = progress


def _update_bar(bar: Progress, task: TaskID, progress: WorkerProgress, tokens_per_s: float) -> None:
    failed = f", {progress.jobs_failed} failed" if progress.jobs_failed else ""
    note = f"{progress.running} running, {tokens_per_s:.0f} tokens/s{failed}"
    bar.update(task, completed=progress.jobs_ended, total=progress.jobs_known or None, note=note)


@contextmanager
def _repeating(read: ReadProgress, show: Show, seconds: float) -> Iterator[None]:
    """Show the progress every `seconds` from a thread of its own, and once more at the end."""
    stopped = threading.Event()

    def repeat() -> None:
        while not stopped.wait(seconds):
            _show_once(read, show)

    thread = threading.Thread(target=repeat, name="panel", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        _show_once(read, show)


def _show_once(read: ReadProgress, show: Show) -> None:
    with suppress(PagemillError):  # Redis is away: the worker itself says so, and the panel keeps what it shows
        show(read())
