"""What a worker's main loop drains its queues with, whatever it runs."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from worker.running.held import HeldJobs
from worker.running.threads import Failure


class ClaimsState(StrEnum):
    """What a worker's claims do."""

    STARTING = "starting"
    GOING = "going"
    STOPPED = "stopped"  # Redis or SQL does not answer; they go on by themselves
    ENDED = "ended"  # the worker was told to stop


class Claims(Protocol):
    """Where jobs come from."""

    def claim(self) -> int:
        """Claim what there is room for; return how many records came."""

    def sweep(self) -> None:
        """Queue again what a silent worker holds."""

    def waits_for_limits(self) -> bool:
        """Tell whether a burst is to wait for jobs whose tenants are at their limits."""


class Delays(Protocol):
    """What brings delayed jobs."""

    def enqueue_due(self) -> None:
        """Queue what is due."""

    def in_reach(self) -> bool:
        """Tell whether a burst is to wait for some."""


@dataclass(frozen=True, slots=True)
class Drain:
    """What a worker drains its queues with."""

    claimer: Claims
    delayed: Delays
    held: HeldJobs
    failure: Failure
    sweep_seconds: float
