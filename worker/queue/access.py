"""What anyone with a connection may do with the queue: cancel, count, follow live tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import redis
from rq.defaults import RQ_KEY_PREFIX
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from worker.jobs import MAX_OUTPUTS
from worker.queue.connection import redis_errors
from worker.queue.scripts import QueueScripts
from worker.queue.server_errors import as_pagemill_error

FAILURE_TTL_SECONDS = 31_536_000  # RQ's default: a year
CANCEL_REQUEST_SECONDS = 86_400  # a worker that has not seen the request by then is not going to
TOKEN_STREAM_LENGTH = 10_000  # about so many deltas are kept per job
TOKEN_STREAM_SECONDS = 600  # after the last delta
MAX_BLOCK_MS = 4_000  # below the socket's time-out
MAX_DIGITS = 12  # of a place in an output
WHOLE_REASONS = frozenset({"stop", "stop_string", "length", "tool_calls"})  # how outputs of a job that is done ended

CANCELLING_KEY = "pagemill:cancelling"
WATCHED_KEY = "pagemill:watched"
PAUSED_KEY = "pagemill:paused"


class CancelOutcome(StrEnum):
    """What became of a request to cancel."""

    CANCELLED_WAITING = "cancelled_waiting"  # it had not started, and never will
    CANCELLING = "cancelling"  # it is running: its worker will end it
    NOT_CANCELLABLE = "not_cancellable"  # it has ended already
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The answer to a request to cancel, and RQ's status of the job just before it (None: no such job)."""

    outcome: CancelOutcome
    status: str | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs of one queue are where."""

    waiting: int  # suspects of a crash among them
    running: int
    delayed: int
    finished: int
    failed: int
    canceled: int
    dead: int


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A piece of a job's output as it was generated, and how many characters come before it (None: it does not say).
    `final` marks the last one of an attempt that ended its job, of whichever output. `finish_reason`, one of
    `WHOLE_REASONS`, says that its output has ended with it, while others of the job go on."""

    text: str
    final: bool = False
    position: int | None = None
    index: int = 0  # of the output, among those of the job
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A delta as it was read, with its place in the stream."""

    event_id: str
    delta: TokenDelta


class QueueAccess:
    """The queue as producers and the command line see it. Errors of every method: those of `redis_errors`."""

    def __init__(self, connection: redis.Redis) -> None:
        self.connection = connection
        self._scripts = QueueScripts(connection)

    def cancel(self, job_id: str) -> Cancellation:
        """Cancel the job of exactly this id: at once where it waits or is delayed, through its worker where it runs."""
        return self.cancel_many([job_id])[job_id]

    def cancel_many(self, job_ids: Iterable[str]) -> Mapping[str, Cancellation]:
        """Cancel jobs as `cancel` does, in one round trip."""
        ids = list(dict.fromkeys(job_ids))
        reply = self._scripts.call("cancel", [CANCEL_REQUEST_SECONDS, FAILURE_TTL_SECONDS, *ids])
        return {job_id: self._read_cancellation(job_id, *answer) for job_id, answer in zip(ids, reply, strict=True)}

    def _read_cancellation(self, job_id: str, outcome: bytes, status: bytes) -> Cancellation:
        if outcome == b"elsewhere":
            return self._cancel_through_rq(job_id, status.decode("utf-8", "replace"))
        return Cancellation(CancelOutcome(outcome.decode()), status.decode("utf-8", "replace") or None)

    def _cancel_through_rq(self, job_id: str, status: str) -> Cancellation:
        """Cancel a deferred or rate-limited job, which only RQ knows where to find."""
        try:
            with redis_errors():
                Job.fetch(job_id, connection=self.connection, serializer=JSONSerializer).cancel()
        except (InvalidJobOperation, NoSuchJobError):
            return Cancellation(CancelOutcome.NOT_CANCELLABLE, status)
        return Cancellation(CancelOutcome.CANCELLED_WAITING, status)

    def depth(self, queues: Iterable[str]) -> dict[str, int]:
        """Return how many jobs wait in each queue."""
        names = list(queues)
        with redis_errors(), self.connection.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.llen(f"{RQ_KEY_PREFIX}:queue:{name}")
            return dict(zip(names, pipeline.execute(), strict=True))

    def counts(self, queues: Iterable[str]) -> dict[str, QueueCounts]:
        """Return how many jobs of each queue are waiting, running, delayed and in the registries of ended jobs."""
        names = list(queues)
        registries = ("wip", "scheduled", "finished", "failed", "canceled")
        with redis_errors(), self.connection.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.llen(f"{RQ_KEY_PREFIX}:queue:{name}")
                pipeline.lrange(f"pagemill:suspects:{name}", 0, -1)
                for registry in registries:
                    pipeline.zcard(f"{RQ_KEY_PREFIX}:{registry}:{name}")
                pipeline.llen(f"pagemill:dead:{name}")
            replies = pipeline.execute()
        counts, width = {}, len(replies) // max(len(names), 1)
        for place, name in enumerate(names):
            waiting, groups, *others = replies[width * place : width * (place + 1)]
            counts[name] = QueueCounts(waiting + len(b" ".join(groups).split()), *others)
        return counts

    def watch(self, job_id: str, ttl_seconds: float) -> None:
        """Ask the job's worker to publish its tokens for the next `ttl_seconds`."""
        self._scripts.call("mark", [WATCHED_KEY, ttl_seconds, job_id])

    def watched(self) -> frozenset[str]:
        """Return the ids of the jobs somebody watches now."""
        return self._marked(WATCHED_KEY)

    def _marked(self, key: str) -> frozenset[str]:
        """Return the members whose time has not run out; whoever can write there can write anything."""
        return frozenset(job_id.decode("utf-8", "replace") for job_id in self._scripts.call("marked", [key]))

    def publish_tokens(self, deltas: Mapping[str, Sequence[TokenDelta]]) -> None:
        """Append deltas to the streams of jobs, by job id, in one round trip. A job whose stream cannot be appended
        to, because something else lies there, is not followed; the others are."""
        with redis_errors(), self.connection.pipeline(transaction=False) as pipeline:
            for job_id, pieces in deltas.items():
                key = tokens_key(job_id)
                for delta in pieces:
                    pipeline.xadd(key, _fields(delta), maxlen=TOKEN_STREAM_LENGTH, approximate=True)
                pipeline.expire(key, TOKEN_STREAM_SECONDS)
            for reply in pipeline.execute(raise_on_error=False):
                if isinstance(reply, redis.RedisError) and as_pagemill_error(reply, "Redis") is not None:
                    raise reply

    def read_tokens(self, job_id: str, last_id: str = "0-0", block_ms: int = 0) -> Sequence[TokenEvent]:
        """Return the deltas behind `last_id`, waiting up to `block_ms` (at most `MAX_BLOCK_MS`) for the first; 0 is
        not to wait."""
        block = min(block_ms, MAX_BLOCK_MS) or None
        with redis_errors():
            reply: Any = self.connection.xread({tokens_key(job_id): last_id}, count=1000, block=block)
        events = reply[0][1] if reply else []
        return tuple(TokenEvent(event_id.decode(), read_delta(fields)) for event_id, fields in events)


def tokens_key(job_id: str) -> str:
    """Return the key of the stream of a job's tokens."""
    return f"pagemill:tokens:{job_id}"


def _fields(delta: TokenDelta) -> dict[Any, Any]:
    fields: dict[Any, Any] = {"text": delta.text} | ({"final": "1"} if delta.final else {})
    fields |= {} if delta.position is None else {"position": delta.position}
    fields |= {} if delta.finish_reason is None else {"finish_reason": delta.finish_reason}
    return fields | ({"index": delta.index} if delta.index else {})


def read_delta(fields: Mapping[bytes, bytes]) -> TokenDelta:
    """Return the delta that an entry of a stream holds; whoever can write there can write anything. What says that it
    is of an output that no job can have is of none, and empty."""
    position, index = _number(fields.get(b"position", b"")), _number(fields.get(b"index", b"0"))
    text = fields.get(b"text", b"").decode("utf-8", "replace")
    is_final = b"final" in fields
    if index is None or index >= MAX_OUTPUTS:
        return TokenDelta("", is_final)
    reason = fields.get(b"finish_reason", b"").decode("utf-8", "replace")
    return TokenDelta(text, is_final, position, index, reason if reason in WHOLE_REASONS else None)


def _number(digits: bytes) -> int | None:
    return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else None
