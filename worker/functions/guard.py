"""Time-outs and stops for a function that runs in a thread, where no signal can reach it.

An exception is raised in the thread from outside, but only while it is within a limited region: the function's or a
callback's own code, never the worker's between them. It arrives between two bytecodes; a thread that hangs in C code
does not see it, and is given up: somebody else ends its job, and what it brings later counts for nothing.
"""

import ctypes
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rq.timeouts import BaseDeathPenalty, BaseTimeoutException

GRACE_SECONDS = 1.0  # for a function to end by itself once its time is up

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)
_NOTHING = ctypes.py_object()


class Abandoned(BaseException):
    """The job is not this thread's any more. Not an Exception: nobody's `except Exception` may hold it up."""


class Guard:
    """Guards one execution. `on_stuck` gets the time-out that a thread did not react to; on a timer's thread."""

    def __init__(self, on_stuck: Callable[[BaseException], None]) -> None:
        self._on_stuck = on_stuck
        self._lock = threading.Lock()
        self._region: _Region | None = None
        self._is_open = True  # until the function has returned: others may end the job
        self.has_begun = False
        self.is_abandoned = False

    def begin(self) -> bool:
        """Note that a thread runs the function now; False where the job was taken away before."""
        with self._lock:
            self.has_begun = not self.is_abandoned
            return self.has_begun

    def limit(self, timeout: float, exception: type[BaseException], **_: Any) -> "_Region":
        """Return a context in which the calling thread has `timeout` seconds, below 1 for ever, before `exception` is
        raised in it. Called as RQ calls its death penalties."""
        return _Region(self, timeout, exception)

    def abandon(self) -> bool:
        """Take the job from its thread and interrupt that, unless it has returned or the job was taken already.
        Returns whether the job is the caller's to end now."""
        with self._lock:
            if self.is_abandoned or not self._is_open:
                return False
            self.is_abandoned = True
            if self._region is not None:
                _raise_in_thread(self._region.thread_id, Abandoned)
            return True

    def settle(self) -> None:
        """Leave the region that the calling thread may still be in: an exception from outside can arrive while a region
        is being entered or left. Raises Abandoned when somebody else ends the job."""
        region = self._region
        if region is not None:
            self.leave(region)
        elif self.is_abandoned:
            raise Abandoned

    def close(self) -> None:
        """Let nobody else end the job any more: its thread has."""
        with self._lock:
            self._region = None
            self._is_open = False

    def enter(self, region: "_Region") -> None:
        with self._lock:
            if self.is_abandoned:
                raise Abandoned
            self._region = region
            self._is_open = True

    def leave(self, region: "_Region") -> None:
        while True:
            try:
                with self._lock:
                    self._region = None
                    self._is_open = False
                    _raise_in_thread(region.thread_id, _NOTHING)  # take back what has not arrived
                break
            except (BaseTimeoutException, Abandoned):  # it arrived just here: the function was done before
                continue
        if self.is_abandoned:
            raise Abandoned

    def expire(self, region: "_Region", exception: type[BaseException]) -> None:
        """End a region whose time is up: by the exception or, where that has no effect, without its thread."""
        with self._lock:
            if self._region is not region or self.is_abandoned:
                return
            _raise_in_thread(region.thread_id, exception)
        if region.left.wait(GRACE_SECONDS):
            return
        with self._lock:
            if self._region is not region or self.is_abandoned:
                return
            self.is_abandoned = True
            _raise_in_thread(region.thread_id, Abandoned)
        self._on_stuck(exception())


class _Region:
    def __init__(self, guard: Guard, timeout: float, exception: type[BaseException]) -> None:
        self._guard = guard
        message = f"Task exceeded maximum timeout value ({timeout:g} seconds)"
        self._exception = _with_message(exception, message)
        self._timer = threading.Timer(timeout, self._expire) if timeout > 0 else None
        self.thread_id = threading.get_ident()
        self.left = threading.Event()

    def _expire(self) -> None:
        self._guard.expire(self, self._exception)

    def __enter__(self) -> None:
        self._guard.enter(self)
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._guard.leave(self)
        self.left.set()
        if self._timer is not None:
            self._timer.cancel()


def _with_message(exception: type[BaseException], message: str) -> type[BaseException]:
    """Return a class that needs no arguments, since a thread can only be sent a class. Its name stays."""
    names = {"__module__": exception.__module__, "__qualname__": exception.__qualname__}
    return type(exception.__name__, (exception,), {**names, "__init__": lambda self: exception.__init__(self, message)})


class ThreadDeathPenalty(BaseDeathPenalty):
    """RQ's time-out for any thread; unlike RQ's own one it may be used in several at once."""

    def __init__(self, timeout: float, exception: type[BaseException] = BaseTimeoutException, **_: Any) -> None:
        super().__init__(timeout, exception)  # type: ignore[no-untyped-call]
        self._limit = Guard(lambda error: None).limit(timeout, exception)

    def setup_death_penalty(self) -> None:
        self._limit.__enter__()

    def cancel_death_penalty(self) -> None:
        self._limit.__exit__(None, None, None)
