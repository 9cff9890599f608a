"""When a worker reconciles: every now and then, and at once after Redis was wiped, restarted or replaced."""

import logging
import time
from collections.abc import Callable

import redis

from worker.errors import PagemillError
from worker.queue.connection import redis_errors
from worker.queue.scripts import QueueScripts
from worker.reconciling import REPAIRED, SILENT_SECONDS, Finding, Findings, Reconciler

MARKER_KEY = "pagemill:reconciled"  # it stays until somebody is to reconcile again
HOLD_SECONDS = 60  # that the marker stays without news of the worker that reconciles
REST_SHARE = 3.0  # of the time that a page takes in which nothing is amiss
LONGEST_REST_SECONDS = 1.0

logger = logging.getLogger(__name__)


def rest(seconds: float) -> None:
    """Leave the processor to the engine's thread for most of the time."""
    time.sleep(min(REST_SHARE * seconds, LONGEST_REST_SECONDS))


class ReconcileChore:
    """Reconciles when it is time to. Of all the workers on a queue one does it, as the marker in Redis says."""

    def __init__(
        self, reconciler: Reconciler, connection: redis.Redis, seconds: float, stopped: Callable[[], bool]
    ) -> None:
        """`seconds` lie between two rounds; `stopped` ends one early."""
        self._reconciler = reconciler
        self._connection = connection
        self._scripts = QueueScripts(connection)
        self._seconds = seconds
        self._stopped = stopped

    def run(self) -> None:
        """Reconcile if it is time to. Raises ServiceUnavailable or TryLater; another try is then made in a minute."""
        if not self._scripts.call("reconcile_due", [MARKER_KEY, HOLD_SECONDS]):
            return
        try:
            findings = self._reconciler.run(lambda seen, total: self._mark(HOLD_SECONDS), self._stopped)
        except PagemillError:
            raise
        except Exception:  # nothing that is wrong with old rows may end the worker
            logger.exception("reconciling failed")
            return
        self._tell(findings)
        # Jobs whose worker may be dead are looked at again once that is certain.
        soon = findings[Finding.IN_FLIGHT] > 0
        self._mark(min(self._seconds, SILENT_SECONDS) if soon else self._seconds)

    def _mark(self, seconds: float) -> None:
        with redis_errors():
            self._connection.pexpire(MARKER_KEY, max(1, round(seconds * 1000)))

    def _tell(self, findings: Findings) -> None:
        done = ", ".join(f"{findings[finding]} {finding}" for finding in REPAIRED if findings[finding])
        if done:
            logger.warning("the queue had lost jobs that SQL has: %s", done)
