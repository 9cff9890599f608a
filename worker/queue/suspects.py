"""Suspects: the jobs that a crash may have been the fault of, kept apart until they end or one is found guilty.

Suspects wait in groups beside their queue. One worker per queue is on suspect duty at a time: it claims nothing else,
lets its held jobs end, and runs one group after the other with nothing beside it. The others go on meanwhile. The duty
itself protects nothing: two workers that run a group each do no harm. See `worker.running.duty`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any
from uuid import uuid4

import redis
from rq.defaults import RQ_KEY_PREFIX

from worker.queue.claim_replies import Claimed, ReadRecord, read_reply
from worker.queue.connection import redis_errors
from worker.queue.crashes import CrashKind
from worker.queue.queue_records import read_record
from worker.queue.scripts import Argument, QueueScripts
from worker.records import Lease

NOTHING_CLAIMED = Claimed((), ())


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker whose process is known to be dead."""

    name: str
    kind: CrashKind
    signal: int | None  # that ended it, where its supervisor saw it
    at_work: frozenset[str] | None  # executions it was computing when it died; None is not known: it may be any
    output_tokens: Mapping[str, int] = field(default_factory=dict)  # how far some of these were


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a dead worker's jobs, by their ids."""

    waiting: tuple[str, ...]  # back at the heads of their queues
    suspects: tuple[str, ...]


class Absolution(IntEnum):
    """What became of a suspicion that was taken back."""

    NONE = 0  # there was none
    ABSOLVED = 1
    TOO_LATE = 2  # it has led to a dead letter


class Suspects:
    """One worker's dealings with suspects. Each verb is one atomic script, and may be called again when its reply was
    lost. Errors of every method: those of `worker.queue.connection.redis_errors`."""

    def __init__(
        self, connection: redis.Redis, worker_name: str, lease_seconds: float, *, read: ReadRecord = read_record
    ) -> None:
        """`read` is that of the worker's `JobQueue`."""
        self._connection = connection
        self._scripts = QueueScripts(connection)
        self._worker_name = worker_name
        self.lease_seconds = lease_seconds
        self._read = read
        self._duty: str | None = None

    @property
    def duty(self) -> str | None:
        """The queue whose suspects this worker runs now."""
        return self._duty

    def abandon(self, dead: DeadWorker) -> Released:
        """Release the leases of a dead worker, without waiting for them to run out. No job loses a retry."""
        arguments: list[Argument] = [dead.name, dead.kind.value, "" if dead.signal is None else dead.signal]
        arguments.append("all" if dead.at_work is None else "named")
        for execution_id in sorted(dead.at_work or ()):
            arguments += (execution_id, dead.output_tokens.get(execution_id, ""))
        waiting, suspects = self._scripts.call("abandon", arguments)
        return Released(_decoded(waiting), _decoded(suspects))

    def absolve(self, claims: Iterable[Lease]) -> tuple[Absolution, ...]:
        """Take back what arose from leases of this worker that ran out: it lives, so nobody crashed it."""
        arguments = [part for claim in claims for part in (claim.queue, claim.job_id, claim.execution_id)]
        return tuple(Absolution(code) for code in self._scripts.call("absolve", arguments)) if arguments else ()

    def pardon(self, job_ids: Iterable[str]) -> None:
        """Forget the crashes of jobs, whatever they were found."""
        with redis_errors(), self._connection.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hdel(f"{RQ_KEY_PREFIX}:job:{job_id}", "pagemill_crashes", "pagemill_crash_log")
            pipeline.execute()

    def seek_duty(self, queues: Sequence[str]) -> bool:
        """Go on duty where suspects wait and nobody else is on duty. Returns whether this worker is on duty now."""
        reply = self._scripts.call("seek_duty", [self._worker_name, self._duty_seconds, *queues])
        self._duty = None if reply is None else reply.decode()
        return reply is not None

    def renew_duty(self) -> None:
        """Stay on duty for another lease's time. From any thread."""
        queue = self._duty
        if queue is not None:
            self._scripts.call("keep_duty", [self._worker_name, self._duty_seconds, queue])

    def end_duty(self) -> None:
        """Let somebody else run what suspects are left."""
        if self._duty is not None:
            self._scripts.call("keep_duty", [self._worker_name, 0, self._duty])
            self._duty = None

    def claim(self) -> Claimed:
        """Claim the next group, whole; only with nothing else held. Guilty jobs come as dead records. When no suspects
        are left, returns nothing and ends the duty."""
        if self._duty is None:
            return NOTHING_CLAIMED
        token = uuid4().hex[:24]
        reply: Sequence[Sequence[Any]] = self._scripts.call(
            "claim_suspects", [self._worker_name, self.lease_seconds, token, self._duty]
        )
        if not reply:
            self.end_duty()
        return read_reply(reply, self._read)

    @property
    def _duty_seconds(self) -> int:
        return math.ceil(self.lease_seconds)


def _decoded(ids: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(job_id.decode("utf-8", "replace") for job_id in ids)
