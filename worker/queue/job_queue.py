"""The queue as a worker sees it: claims under leases, on RQ's own data structures.

Every verb is one atomic script and one round trip, whatever the number of jobs. `rq info`, dashboards and `Job.fetch`
read what is written here; nothing that a record names is imported, called or unpickled.

Every verb may be called again when its reply was lost: a repeated acknowledgement, requeue or dead-lettering finds its
work done; jobs of a claim whose reply was lost come back from `recover`.
"""

import base64
import json
import logging
import math
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import redis
from rq import Queue
from rq.job import Job
from rq.rate_limit import RateLimitRegistry, release_slot
from rq.serializers import JSONSerializer

from worker.errors import PagemillError, ServiceUnavailable
from worker.log_fields import about
from worker.queue.access import CANCELLING_KEY, FAILURE_TTL_SECONDS, PAUSED_KEY, QueueAccess
from worker.queue.claim_replies import Claimed, ReadRecord, read_reply
from worker.queue.connection import redis_errors
from worker.queue.dependents import forget_released
from worker.queue.queue_records import read_record
from worker.queue.scripts import script_commands
from worker.records import AttemptState, Claim, DeadRecord, FunctionClaim, Lease, Retry

DEFAULT_RESULT_TTL_SECONDS = 86_400
DEFAULT_LOWER_QUEUE_SHARE = 0.125
PATIENCE_SECONDS = 120  # before a silence can be a job's last crash: its worker may only have been cut off
SWEEP_LIMIT = 1_000  # leases, or due jobs, per call: bounds the time that a script holds the server

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The end of a claimed job, as RQ's readers will see it. `state` is DONE, FAILED or CANCELLED."""

    claim: Claim
    state: AttemptState
    return_value: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DueJobs:
    """The delayed jobs that went to their queues, and in how many seconds the next one is due (None: no other one)."""

    moved: tuple[str, ...]
    next_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class Delay:
    """A claimed job that is to wait out a back-off."""

    claim: Claim
    retry: Retry


@dataclass(frozen=True, slots=True)
class DelayedClaims:
    """What became of claims that were not simply delayed: the execution ids of those whose leases are `gone`, for which
    nothing was written, and the ids of jobs that were `cancelled`."""

    gone: frozenset[str]
    cancelled: frozenset[str]


class JobQueue(QueueAccess):
    """One worker's claims. Errors of every method: those of `worker.queue.connection.redis_errors`."""

    def __init__(
        self,
        connection: redis.Redis,
        worker_name: str,
        lease_seconds: float,
        *,
        default_result_ttl_seconds: int = DEFAULT_RESULT_TTL_SECONDS,
        lower_queue_share: float = DEFAULT_LOWER_QUEUE_SHARE,
        read: ReadRecord = read_record,
    ) -> None:
        """`lower_queue_share` of the claims goes to queues behind the first one with jobs; 0 is none, as long as that
        one has any. `read` tells a record's kind, and raises RecordError for one of none; by default all but prompts
        are none."""
        super().__init__(connection)
        self._read = read
        self.worker_name = worker_name
        self.lease_seconds = lease_seconds
        self._default_result_ttl_seconds = default_result_ttl_seconds
        self._turn = math.ceil(1 / lower_queue_share) if lower_queue_share else 0

    def check_permissions(self) -> None:
        """Raise ServiceUnavailable when the server's ACL would stop one of the scripts halfway, naming the commands."""
        refused = self._scripts.call("permissions", script_commands())
        if refused:
            names = ", ".join(command.decode() for command in refused)
            raise ServiceUnavailable(
                f"Redis does not let this user run {names} on the queue's keys; its ACL is too narrow"
            )

    def claim(self, queues: Sequence[str], limit: int) -> Claimed:
        """Claim up to `limit` jobs: the first queue's before the second's, save for the lower queues' share, and first
        in, first out within each.

        Dead records are leased too (until `dead_letter`), save those that cannot be: these are dead-lettered already.
        Claims nothing while RQ is suspended, nothing from a paused queue, and no job whose tenant is at its limit.
        """
        if limit < 1:
            return Claimed((), ())
        token = uuid4().hex[:24]
        options = (self.worker_name, self.lease_seconds, limit, token, self._turn)
        return self._settle(self._scripts.call("claim", [*options, *queues]))

    def recover(self, known_execution_ids: Iterable[str]) -> Claimed:
        """Return what this worker holds without knowing it, because the reply of a claim was lost."""
        return self._settle(self._scripts.call("recover", [self.worker_name, *known_execution_ids]))

    def _settle(self, reply: Sequence[Sequence[Any]]) -> Claimed:
        """Read claims, and say whose they are where their records did not: those above a limit are parked."""
        claimed = read_reply(reply, self._read)
        untold = {record[2].decode() for record in reply if _is_untold(*record)}
        claims = [claim for claim in claimed.claims if claim.execution_id in untold]
        if not claims:
            return claimed
        arguments = [part for claim in claims for part in (*_lease_arguments([claim]), claim.job.tenant)]
        parked = _gone(claims, self._scripts.call("tell", [self.lease_seconds, *arguments]))
        kept = tuple(claim for claim in claimed.claims if claim.execution_id not in parked)
        return replace(claimed, claims=kept, num_parked=len(parked))

    def has_parked(self, queues: Sequence[str]) -> bool:
        """Tell whether jobs of queues that are not paused wait for their tenants' limits."""
        with redis_errors(), self.connection.pipeline(transaction=False) as pipeline:
            pipeline.smismember(PAUSED_KEY, list(queues))
            for queue in queues:
                pipeline.exists(f"pagemill:parked:{queue}")
            paused, *parked = pipeline.execute()
        return any(exists and not is_paused for exists, is_paused in zip(parked, paused, strict=True))

    def extend(self, claims: Iterable[Claim]) -> frozenset[str]:
        """Renew leases for `lease_seconds` from now. Returns the execution ids of those that are gone: the job was
        cancelled, deleted or taken over, and must not be acknowledged."""
        held = list(claims)
        return frozenset(lease.execution_id for lease, code in self._extend(held) if code != 1)

    def extend_functions(self, claims: Iterable[FunctionClaim]) -> frozenset[str]:
        """Renew leases as `extend`; a function that was cancelled keeps its lease, since it runs on."""
        held = list(claims)
        return frozenset(lease.execution_id for lease, code in self._extend(held) if code == 0)

    def _extend(self, held: Sequence[Lease]) -> list[tuple[Lease, int]]:
        if not held:
            return []
        reply = self._scripts.call("extend", [self.worker_name, self.lease_seconds, *_lease_arguments(held)])
        return list(zip(held, reply, strict=True))

    def acknowledge(self, acknowledgements: Iterable[Acknowledgement]) -> frozenset[str]:
        """End jobs in Redis, after their commit in SQL: status, registry, result, expiry, the worker's counters, and
        the release of RQ jobs that depend on them. Returns the execution ids of leases that are gone, for which
        nothing was written. Callbacks and webhooks of records are never run."""
        ends = list(acknowledgements)
        if not ends:
            return frozenset()
        arguments: list[str | int] = [self.worker_name, self._default_result_ttl_seconds, FAILURE_TTL_SECONDS]
        for end in ends:
            arguments += _lease_arguments([end.claim])
            arguments += (end.state.value, _encode_value(end.return_value), _encode_error(end.error))
        reply = self._scripts.call("acknowledge", arguments)
        for end, code in zip(ends, reply, strict=True):
            if code == 2 and end.state is not AttemptState.CANCELLED:
                self._release_waiting(end.claim)
        return _gone([end.claim for end in ends], reply)

    def requeue(self, claims: Iterable[Lease]) -> frozenset[str]:
        """Hand jobs back to the heads of their queues in their old order, spending none of RQ's retries. Returns the
        execution ids of leases that are gone."""
        youngest_first = sorted(claims, key=lambda claim: (claim.epoch, claim.execution_id), reverse=True)
        if not youngest_first:
            return frozenset()
        reply = self._scripts.call("requeue", [self.worker_name, *_lease_arguments(youngest_first)])
        return _gone(youngest_first, reply)

    def delay(self, delays: Iterable[Delay]) -> DelayedClaims:
        """Put held jobs off until their retries are due, once SQL has them so; `enqueue_due` brings them back. Those
        that somebody asked to cancel meanwhile are cancelled instead, which SQL is to hear then."""
        delayed = list(delays)
        if not delayed:
            return DelayedClaims(frozenset(), frozenset())
        arguments: list[str | int] = [self.worker_name, FAILURE_TTL_SECONDS]
        for delay in delayed:
            arguments += _lease_arguments([delay.claim])
            arguments += (f"{delay.retry.due_at.timestamp():.6f}", delay.retry.retry_count)
        reply = self._scripts.call("delay", arguments)
        for delay, code in zip(delayed, reply, strict=True):
            if code == 2:
                self._release_slot(delay.claim)
        cancelled = (delay.claim.job_id for delay, code in zip(delayed, reply, strict=True) if code == 3)
        return DelayedClaims(_gone([delay.claim for delay in delayed], reply), frozenset(cancelled))

    def sweep(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Release leases that ran out, of whatever worker; at most `SWEEP_LIMIT` per call. Their jobs are suspects, for
        their workers may have crashed. Returns their ids."""
        reply = self._scripts.call("sweep", [SWEEP_LIMIT, PATIENCE_SECONDS, *queues])
        return tuple(job_id.decode("utf-8", "replace") for job_id in reply)

    def enqueue_due(self, queues: Iterable[str]) -> DueJobs:
        """Move delayed jobs that are due to their queues, whoever delayed them; at most `SWEEP_LIMIT` per call. RQ's
        own scheduler may do the same at the same time."""
        seconds, limits, moved = self._scripts.call("enqueue_due", [SWEEP_LIMIT, *queues])
        for key in set(limits):
            self._fill_slots(key)
        ids = tuple(job_id.decode("utf-8", "replace") for job_id in moved)
        return DueJobs(ids, float(seconds) if seconds else None)

    def dead_letter(self, records: Iterable[DeadRecord]) -> int:
        """Move this worker's dead records to RQ's failed registry and, raw, to the list `pagemill:dead:<queue>`.
        Returns how many moved now; to be called once SQL has them."""
        arguments: list[str | int] = [self.worker_name, FAILURE_TTL_SECONDS]
        for record in records:
            reason = f"{record.error_code}: {record.error_message}"
            arguments += (record.queue, record.job_id, record.raw, _encode_error(reason))
        return int(self._scripts.call("dead_letter", arguments))

    def cancelling(self) -> frozenset[str]:
        """Return the ids of running jobs that somebody asked to cancel, within the last day."""
        return self._marked(CANCELLING_KEY)

    def forget_cancelling(self, job_ids: Collection[str]) -> None:
        """Drop requests to cancel that are answered or moot."""
        if job_ids:
            with redis_errors():
                self.connection.zrem(CANCELLING_KEY, *job_ids)

    def _release_waiting(self, claim: Claim) -> None:
        """Let RQ enqueue the jobs that wait for this one's end, and free its rate limit's slot."""
        try:
            with redis_errors():
                job = Job.fetch(claim.job_id, connection=self.connection, serializer=JSONSerializer)
                queue = Queue(claim.queue, connection=self.connection, serializer=JSONSerializer)
                forget_released(self.connection, job)
                queue.enqueue_dependents(job)
                release_slot(job)
        except PagemillError:
            raise  # Redis is away: the whole call is to be repeated
        except Exception:  # RQ reads foreign records here; whatever they hold, the end of this job stands
            logger.exception(
                "job %s has ended, but the jobs that depend on it could not be released",
                claim.job_id,
                extra=about(claim),
            )

    def _fill_slots(self, rate_limit: bytes) -> None:
        """Let jobs that wait for a rate limit of RQ's have its free slots."""
        try:
            with redis_errors():
                limit = RateLimitRegistry(rate_limit.decode(), self.connection)
                limit.acquire_and_enqueue(limit.concurrency)
        except PagemillError:
            raise  # RQ's maintenance fills them, should the call not be repeated
        except Exception:
            logger.exception("the jobs of rate limit %r wait on", rate_limit)

    def _release_slot(self, claim: Claim) -> None:
        """Free the rate limit's slot of a job that waits out a back-off."""
        try:
            with redis_errors():
                release_slot(Job.fetch(claim.job_id, connection=self.connection, serializer=JSONSerializer))
        except PagemillError:
            raise  # Redis is away: the whole call is to be repeated
        except Exception:  # RQ's maintenance frees it, too
            logger.exception(
                "job %s is delayed, but its rate limit's slot could not be freed", claim.job_id, extra=about(claim)
            )


def _lease_arguments(claims: Iterable[Lease]) -> list[str | int]:
    return [part for claim in claims for part in (claim.queue, claim.job_id, claim.execution_id, claim.epoch)]


def _gone(claims: Sequence[Lease], reply: Sequence[int]) -> frozenset[str]:
    return frozenset(claim.execution_id for claim, code in zip(claims, reply, strict=True) if code == 0)


def _encode_value(value: dict[str, Any] | None) -> str:
    """Encode a return value as `rq.results.Result` does with RQ's JSON serializer; '' is none."""
    return "" if value is None else base64.b64encode(json.dumps(value).encode()).decode()


def _encode_error(text: str | None) -> str:
    """Encode an error's text as `rq.results.Result` does; '' is none."""
    return "" if text is None else base64.b64encode(zlib.compress(text.encode("utf-8", "replace"))).decode()


def _is_untold(kind: bytes, *record: Any) -> bool:
    """Tell whether the tenant of a claimed job may matter and is not known to Redis."""
    return kind == b"untold" or (kind == b"recovered" and b"pagemill_tenant" not in record[-1][::2])
