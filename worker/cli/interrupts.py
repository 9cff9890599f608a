"""Ctrl-C that is not lost: what a signal handler raises may land where Python can only print it, as in a finalizer."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """Let SIGINT raise KeyboardInterrupt, as ever, and the yielded function raise it again where that was lost.

    For the main thread.
    """
    is_noted = False

    def note(_number: int, _frame: object) -> None:
        nonlocal is_noted
        is_noted = True
        raise KeyboardInterrupt

    def check() -> None:
        if is_noted:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
