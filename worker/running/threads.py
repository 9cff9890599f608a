"""The worker's threads: each does one thing until told to stop; one that dies takes the worker down in order."""

import logging
import threading
import time
from collections.abc import Callable

from worker.errors import PagemillError

POLL_SECONDS = 0.05

logger = logging.getLogger(__name__)


class Flag:
    """A `threading.Event` that a signal handler may set: the event itself can deadlock there, because the handler may
    have interrupted the very thread that holds the event's lock."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout_seconds: float) -> bool:
        """Return whether the flag is set, at the latest `timeout_seconds` from now."""
        deadline = time.monotonic() + timeout_seconds
        while not self._is_set and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, POLL_SECONDS))
        return self._is_set


class Failure:
    """The first error that ended a part of the worker; the main loop looks for it and stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def report(self, error: Exception, where: str) -> None:
        """Log an error, and keep the first."""
        if isinstance(error, PagemillError):
            logger.error("%s stopped: %s", where, error)
        else:
            logger.error("%s failed", where, exc_info=error)
        with self._lock:
            self.error = self.error or error


class ServiceThread(threading.Thread):
    """A daemon thread whose errors are reported, never lost."""

    def __init__(self, name: str, target: Callable[[], None], failure: Failure) -> None:
        super().__init__(name=f"pagemill-{name}", daemon=True)
        self._body = target
        self._failure = failure

    def run(self) -> None:
        try:
            self._body()
        except Exception as error:
            self._failure.report(error, f"thread {self.name}")
