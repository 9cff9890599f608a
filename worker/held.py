"""The jobs a worker holds: claimed, not yet acknowledged. Shared by the worker's threads."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.request import Request
from worker.records import Claim


@dataclass(slots=True, eq=False)
class HeldJob:
    """A claimed job on its way through the worker. Each field is written by one thread, before the next one has it."""

    claim: Claim
    claimed_at: float  # seconds on the monotonic clock
    prompt: list[int] = field(default_factory=list)  # token ids, once tokenized
    tokenize_ms: float = 0.0
    request: Request | None = None  # once the engine has it
    cancel_requested: threading.Event = field(default_factory=threading.Event)


class HeldJobs:
    """At most `capacity` held jobs, by id. What is held keeps its lease; what is not may be claimed by anyone."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._jobs: dict[str, HeldJob] = {}
        self._ended: set[str] = set()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> int:
        return self.capacity - len(self._jobs)

    def add(self, jobs: Iterable[HeldJob]) -> None:
        with self._changed:
            self._jobs.update((job.claim.job_id, job) for job in jobs)

    def remove(self, job_ids: Iterable[str]) -> None:
        """Let jobs go; ids that are not held are ignored."""
        with self._changed:
            for job_id in job_ids:
                self._jobs.pop(job_id, None)
                self._ended.discard(job_id)
            self._changed.notify_all()

    def mark_ended(self, job_id: str) -> None:
        """Note that a held job has its outcome and only waits to be persisted."""
        with self._changed:
            if job_id in self._jobs:
                self._ended.add(job_id)

    def unfinished(self) -> tuple[HeldJob, ...]:
        """Return the held jobs without an outcome, oldest claim first."""
        with self._changed:
            return tuple(job for job_id, job in self._jobs.items() if job_id not in self._ended)

    def get(self, job_id: str) -> HeldJob | None:
        return self._jobs.get(job_id)

    def all(self) -> tuple[HeldJob, ...]:
        """Return a snapshot, oldest claim first."""
        with self._changed:
            return tuple(self._jobs.values())

    def wait_for_change(self, timeout_seconds: float) -> None:
        """Return when a job was let go, or after the time-out."""
        with self._changed:
            self._changed.wait(timeout_seconds)
