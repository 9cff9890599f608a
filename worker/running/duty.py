"""Suspect duty: when a worker runs suspects, and how it comes to run nothing beside them."""

import logging
import time
from collections.abc import Callable, Sequence

from worker.queue.claim_replies import Claimed
from worker.queue.suspects import DeadWorker, Suspects
from worker.running.crash_journal import Journal
from worker.running.held import HeldJob, HeldJobs

PATIENCE_SHARE = 1 / 3  # of a lease: the time for held jobs to end by themselves before a group of suspects runs

logger = logging.getLogger(__name__)


class SuspectDuty:
    """A worker's part in what follows from crashes of others. On the worker's main thread."""

    def __init__(
        self,
        suspects: Suspects,
        journal: Journal,
        held: HeldJobs,
        queues: Sequence[str],
        give_back: Callable[[HeldJob], None],
        give_back_functions: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`give_back` ends a held job here and puts it back to the head of its queue, where others may have it;
        `give_back_functions` does so with all plain functions, and may raise ServiceUnavailable or TryLater."""
        self.suspects = suspects
        self._journal = journal
        self._held = held
        self._queues = tuple(queues)
        self._give_back = give_back
        self._give_back_functions = give_back_functions
        self._clock = clock
        self._clear_by: float | None = None  # when what was held before the duty is to be gone

    @property
    def is_on(self) -> bool:
        return self.suspects.duty is not None

    def take_over(self) -> None:
        """Release the leases of workers of this host that are dead. Raises as `Suspects.abandon`."""
        self._journal.take_over(self._release)

    def seek(self) -> None:
        """Go on duty where suspects wait and nobody is on duty. Raises as `Suspects.seek_duty`."""
        if not self.is_on and self.suspects.seek_duty(self._queues):
            self._clear_by = self._clock() + self.suspects.lease_seconds * PATIENCE_SHARE
            logger.warning("only suspects of crashes run here now, those of queue %s", self.suspects.duty)

    def may_claim(self) -> bool:
        """Tell whether nothing is held, so that the next group runs by itself. What was held before the duty is given
        back once it has had its time."""
        if self._clear_by is not None and self._clock() >= self._clear_by:
            self._clear_by = None
            for job in self._held.unfinished():
                self._give_back(job)
            self._give_back_functions()
        return not len(self._held)

    def claim(self) -> Claimed:
        """Claim the next group; nothing, at the end of the duty. Raises as `Suspects.claim`."""
        self._clear_by = None
        return self.suspects.claim()

    def end(self) -> None:
        """Go off duty. Raises as `Suspects.end_duty`."""
        self.suspects.end_duty()

    def _release(self, dead: DeadWorker) -> None:
        released = self.suspects.abandon(dead)
        logger.warning(
            "worker %s died (%s): %d of its jobs wait again, %d were at work and run apart",
            dead.name,
            dead.kind if dead.signal is None else f"signal {dead.signal}",
            len(released.waiting),
            len(released.suspects),
        )
