"""Progress on standard error, where that is a terminal."""

import sys

import click

BAR_WIDTH = 30
CLEAR_LINE = "\r\x1b[2K"


class StatusLine:
    """One line that is written over; nothing where standard error is no terminal."""

    def __init__(self) -> None:
        self._visible = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show `text` in place of what was shown before."""
        if self._visible:
            click.echo(f"{CLEAR_LINE}{text}", nl=False, err=True)

    def clear(self) -> None:
        """Free the line for other output."""
        if self._visible:
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
