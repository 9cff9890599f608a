"""The main loop of the RQ worker: it claims, sweeps and maintains until told to stop, whatever it claims for."""

import logging
import math
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now
from rq.worker import WorkerStatus

from worker.errors import ServiceUnavailable, TryLater
from worker.functions.rq_functions import FunctionWorker
from worker.queue.connection import redis_errors
from worker.running.drain import ClaimsState, Drain

IDLE_POLL_SECONDS = 0.1
OUTAGE_POLL_SECONDS = 1.0

logger = logging.getLogger(__name__)


class DrainingWorker(FunctionWorker):
    """An `rq.Worker` that fills what it holds from its queues, and lets that end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what `rq.Worker` takes."""
        super().__init__(*args, **options)
        self.claims_state = ClaimsState.STARTING
        self._is_suspended = False
        self._same_within_seconds = 0.0
        self._signalled_at = -math.inf  # on the monotonic clock

    def take_signals(self, *, same_within_seconds: float = 0.0) -> None:
        """Let SIGINT and SIGTERM stop the worker, from here to the end of the process. On the main thread.

        One that comes within `same_within_seconds` of the first is the same request once more.
        """
        self._same_within_seconds = same_within_seconds
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def drain_queues(self, drain: Drain, *, burst: bool) -> None:
        """Claim until told to stop or until a thread died, or in a burst until nothing waits, nothing is held and
        no delayed job is due in reach."""
        next_sweep = time.monotonic()
        is_down = False
        while not self.stopping.is_set() and drain.failure.error is None:
            was_empty = not len(drain.held)
            if time.monotonic() >= next_sweep:
                self._try_chore("sweep", drain.claimer.sweep)
                self._try_chore("looking whether RQ is suspended", self._look_for_suspension)
                next_sweep = time.monotonic() + drain.sweep_seconds
            self._try_chore("enqueueing delayed jobs", drain.delayed.enqueue_due)
            if self.should_run_maintenance_tasks:
                self._try_chore("maintenance", self.run_maintenance_tasks)
            try:
                num_taken = drain.claimer.claim()
                is_over = burst and was_empty and not num_taken and not self._more_will_come(drain)
            except (ServiceUnavailable, TryLater) as error:
                if not is_down:
                    logger.warning("claims stop: %s", error)
                is_down = True
                self.claims_state = ClaimsState.STOPPED
                self.stopping.wait(OUTAGE_POLL_SECONDS)
                continue
            if is_down:
                logger.warning("claims go on")
            is_down = False
            self.claims_state = ClaimsState.GOING
            idle = WorkerStatus.SUSPENDED if self._is_suspended else WorkerStatus.IDLE
            self._show(WorkerStatus.BUSY if len(drain.held) else idle)
            if is_over:
                return
            if not num_taken:
                drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def _more_will_come(self, drain: Drain) -> bool:
        """Tell whether jobs that nobody can claim now will be claimable by themselves: delayed ones that are due soon,
        and those that wait for their tenants' limits. Raises ServiceUnavailable or TryLater."""
        return drain.delayed.in_reach() or drain.claimer.waits_for_limits()

    def finish_held(self, drain: Drain, drain_seconds: float) -> None:
        """Wait until nothing is held, the time is up, a second request to stop came or a thread died."""
        self.claims_state = ClaimsState.ENDED
        deadline = time.monotonic() + drain_seconds
        if len(drain.held):
            logger.info("claims end; %d held jobs have %g s to finish", len(drain.held), drain_seconds)
            if self._shutdown_requested_date is not None:  # else there is just enough done
                self._stop_requested = True
                self._try_chore("saying that a stop was asked for", self.set_shutdown_requested_date)
        while len(drain.held) and time.monotonic() < deadline:
            if self.handing_back.is_set() or drain.failure.error is not None:
                return
            drain.held.wait_for_change(IDLE_POLL_SECONDS)

    def _try_chore(self, name: str, chore: Callable[[], None]) -> None:
        """Do what can also be left undone for once: nothing that goes wrong here may keep jobs from being claimed."""
        try:
            with redis_errors():
                chore()
        except (ServiceUnavailable, TryLater) as error:
            logger.info("%s is put off: %s", name, error)
        except Exception:
            logger.exception("%s failed", name)

    def _look_for_suspension(self) -> None:
        """Only for RQ's tools to show: claims ask themselves."""
        self._is_suspended = bool(self.connection.exists(WORKERS_SUSPENDED))

    def _show(self, state: WorkerStatus) -> None:
        """Set the state that RQ's tools show; one that Redis does not take now follows with the next beat."""
        if self.get_state() != state:
            self._try_chore("showing the state", lambda: self.set_state(state))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.stopping.is_set() and time.monotonic() - self._signalled_at < self._same_within_seconds:
            return
        self._signalled_at = time.monotonic()
        self._request_stop()

    def _request_stop(self) -> None:
        """Only note it: in a signal handler anything more could run inside anything else."""
        if self.stopping.is_set():
            self.handing_back.set()
        self.stopping.set()
        self._shutdown_requested_date = self._shutdown_requested_date or now()
