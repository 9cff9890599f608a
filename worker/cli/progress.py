"""Progress on standard error, where that is a terminal."""

import sys
import time
from collections import deque
from collections.abc import Callable

import click

BAR_WIDTH = 30
PACE_SECONDS = 30.0  # over which a rate is measured
PLAIN_SECONDS = 10.0  # between two lines where standard error is no terminal
CLEAR_LINE = "\r\x1b[2K"


class StatusLine:
    """One line that is written over; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self.visible = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show `text` in place of what was shown before."""
        if self.visible:
            click.echo(f"{CLEAR_LINE}{text}", nl=False, err=True)

    def clear(self) -> None:
        """Free the line for other output."""
        if self.visible:
            click.echo(CLEAR_LINE, nl=False, err=True)


class Progress:
    """A bar on a status line."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = StatusLine()

    def draw(self, done: int, failed: int = 0) -> None:
        """Show how many jobs are done with, and how many of them failed."""
        filled = BAR_WIDTH * done // max(1, self._total)
        failures = f", {failed} failed" if failed else ""
        self._line.show(f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{self._total}{failures}")

    def clear(self) -> None:
        """Free the line for other output."""
        self._line.clear()


class TimedProgress:
    """A bar with the rate of late and the time left; where standard error is no terminal, a line every few seconds."""

    def __init__(self, noun: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`noun` is what is counted, in the plural."""
        self._noun = noun
        self._clock = clock
        self._line = StatusLine()
        self._samples: deque[tuple[float, int]] = deque()  # when, how many were done
        self._plain_at = clock() + PLAIN_SECONDS

    def draw(self, done: int, failed: int, total: int) -> None:
        """Show how many of `total` are done with, and how many of these failed."""
        now = self._clock()
        self._samples.append((now, done))
        while self._samples[0][0] < now - PACE_SECONDS:
            self._samples.popleft()
        failures = f", {failed:,} failed" if failed else ""
        text = f"{done:,}/{total:,} {self._noun}{failures}{self._pace(done, total)}"
        if self._line.visible:
            filled = BAR_WIDTH * done // max(1, total)
            self._line.show(f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {text}")
        elif now >= self._plain_at:
            self._plain_at = now + PLAIN_SECONDS
            click.echo(text, err=True)

    def clear(self) -> None:
        """Free the line for other output."""
        self._line.clear()

    def _pace(self, done: int, total: int) -> str:
        first_at, first_done = self._samples[0]
        seconds = self._samples[-1][0] - first_at
        if done == first_done or seconds <= 0:
            return ""
        rate = (done - first_done) / seconds
        left = f", {format_span((total - done) / rate)} left" if done < total else ""
        return f", {rate:,.3g}/s{left}" if rate < 100 else f", {rate:,.0f}/s{left}"


def format_span(seconds: float) -> str:
    """Return a span of time as a person says it: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    for unit, size, next_unit, next_size in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{whole} s"
