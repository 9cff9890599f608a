"""The worker's threads: each does one thing until told to stop; one that dies takes the worker down in order."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Failure:
    """The first unexpected error of any thread; the main loop looks for it and stops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def report(self, error: Exception) -> None:
        with self._lock:
            self.error = self.error or error


class ServiceThread(threading.Thread):
    """A daemon thread whose unexpected errors are logged and reported, never lost."""

    def __init__(self, name: str, target: Callable[[], None], failure: Failure) -> None:
        super().__init__(name=f"pagemill-{name}", daemon=True)
        self._body = target
        self._failure = failure

    def run(self) -> None:
        try:
            self._body()
        except Exception as error:
            logger.exception("thread %s failed", self.name)
            self._failure.report(error)
