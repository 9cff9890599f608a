"""The jobs a worker holds: claimed, not yet acknowledged. Shared by the worker's threads."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.grammar import Grammar
from engine.request import Request
from worker.inputs import InputEnd
from worker.records import Claim


@dataclass(slots=True, eq=False)
class HeldJob:
    """A claimed job on its way through the worker. Each field is written by one thread, before the next one has it;
    the flags may be set by any thread at any time, and are never cleared."""

    claim: Claim
    claimed_at: float  # seconds on the monotonic clock
    attempt_count: int = 1  # this attempt included; as SQL has it, once that knows the attempt
    retry_count: int = 0  # retries that earlier attempts have spent; likewise
    inputs: Mapping[str, InputEnd] = field(default_factory=dict)  # as SQL has them; see `worker.inputs`
    prompt: list[int] = field(default_factory=list)  # token ids, once tokenized
    grammars: Sequence[Grammar | None] = (None,)  # one an output, compiled by then
    tokenize_ms: float = 0.0
    tokenized_at: float | None = None  # seconds on the monotonic clock
    outputs: tuple[Request, ...] = ()  # one an output, once the engine has them
    cancel_requested: bool = False  # it is to end as cancelled
    expired: bool = False  # its deadline has passed: it is to end as failed
    lost: bool = False  # somebody else runs it, or will: it is to end here without a trace
    lease_gone: bool = False  # it is not renewed any more

    @property
    def request(self) -> Request | None:
        """The request of the first output, which is that of a job with one; None before the engine has it."""
        return self.outputs[0] if self.outputs else None

    @property
    def must_end(self) -> bool:
        """Whether it is not worth computing any further."""
        return self.cancel_requested or self.lost or self.expired

    @property
    def deadline(self) -> float | None:
        """When the attempt's deadline passes, in seconds on the monotonic clock; None for never. The local wall clock
        plays no part: the claim tells what Redis's clock said."""
        at = self.claim.deadline
        return None if at is None else self.claimed_at + (at - self.claim.claimed_at).total_seconds()

    def check_deadline(self, now: float) -> None:
        """Note the deadline if it has passed; `now` is in seconds on the monotonic clock."""
        deadline = self.deadline
        if deadline is not None and now >= deadline:
            self.expired = True


class HeldJobs:
    """Up to `capacity` held jobs, by execution. What is held keeps its lease; what is not may be claimed by anyone.

    A worker may hold a job twice for a moment: under a lease that ran out, and under the one that it claimed since.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_added = 0  # ever: tells that there are new ones
        self._jobs: dict[str, HeldJob] = {}  # by execution id
        self._latest: dict[str, HeldJob] = {}  # by job id
        self._ended: set[str] = set()  # execution ids
        self._functions: set[str] = set()  # execution ids
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._jobs) + len(self._functions)

    @property
    def room(self) -> int:
        return self.capacity - len(self)

    @property
    def num_ended(self) -> int:
        """Held jobs that have their outcome, but are not in SQL and acknowledged."""
        return len(self._ended)

    def occupy(self, execution_id: str) -> None:
        """Count a plain function's execution too; the function pool has the rest of it."""
        with self._changed:
            self._functions.add(execution_id)

    def vacate(self, execution_id: str) -> None:
        """Count it no more; one that is not counted is ignored."""
        with self._changed:
            self._functions.discard(execution_id)
            self._changed.notify_all()

    def add(self, jobs: Iterable[HeldJob]) -> tuple[HeldJob, ...]:
        """Hold jobs. Returns what was held of the same jobs under earlier leases."""
        superseded = []
        with self._changed:
            for job in jobs:
                if (earlier := self._latest.get(job.claim.job_id)) is not None:
                    superseded.append(earlier)
                self._jobs[job.claim.execution_id] = self._latest[job.claim.job_id] = job
                self.num_added += 1
        return tuple(superseded)

    def remove(self, execution_ids: Iterable[str]) -> None:
        """Let jobs go; ids that are not held are ignored."""
        with self._changed:
            for execution_id in execution_ids:
                job = self._jobs.pop(execution_id, None)
                if job is not None and self._latest.get(job.claim.job_id) is job:
                    del self._latest[job.claim.job_id]
                self._ended.discard(execution_id)
            self._changed.notify_all()

    def end(self, execution_id: str) -> bool:
        """Note that a held job has its outcome. Returns whether that is news: a job ends once, whoever is first."""
        with self._changed:
            if execution_id not in self._jobs or execution_id in self._ended:
                return False
            self._ended.add(execution_id)
            return True

    def is_unfinished(self, job: HeldJob) -> bool:
        """Tell whether a job is held and has no outcome yet."""
        execution_id = job.claim.execution_id
        with self._changed:
            return execution_id in self._jobs and execution_id not in self._ended

    def unfinished(self) -> tuple[HeldJob, ...]:
        """Return the held jobs without an outcome, oldest claim first."""
        with self._changed:
            return tuple(job for execution_id, job in self._jobs.items() if execution_id not in self._ended)

    def get(self, execution_id: str) -> HeldJob | None:
        """Return the held job of an execution."""
        return self._jobs.get(execution_id)

    def find(self, job_id: str) -> HeldJob | None:
        """Return a held job, under its latest lease."""
        return self._latest.get(job_id)

    def all(self) -> tuple[HeldJob, ...]:
        """Return a snapshot, oldest claim first."""
        with self._changed:
            return tuple(self._jobs.values())

    def wait_for_change(self, timeout_seconds: float) -> None:
        """Return when a job was let go, or after the time-out."""
        with self._changed:
            self._changed.wait(timeout_seconds)
