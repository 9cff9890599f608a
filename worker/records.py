"""What travels between the queue, the engine's threads and SQL: frozen, plain, no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from worker.backoff import RetryPolicy
from worker.jobs import PromptJob
from worker.queue.crashes import Diagnosis


class JobState(StrEnum):
    """A job's state in SQL. The last four are terminal."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD = "dead"


TERMINAL_STATES = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.DEAD})


class AttemptState(StrEnum):
    """How one attempt ended; RUNNING until it has."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"  # handed back (drain, infrastructure): the job will have another attempt
    LOST = "lost"  # the lease ran out: its worker died or was cut off


class Lease(Protocol):
    """What the queue knows a claim by."""

    @property
    def job_id(self) -> str: ...
    @property
    def execution_id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def queue(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A job this worker holds: one attempt under one lease."""

    job_id: str
    execution_id: str  # RQ's execution: the lease's name
    epoch: int  # fencing number: microseconds on Redis's clock, strictly rising per job
    queue: str
    job: PromptJob
    payload_json: str  # the job's JSON object as it was enqueued
    enqueued_at: datetime  # UTC
    claimed_at: datetime  # UTC, Redis's clock
    age_seconds: float = 0.0  # at the reply that brought it: more than 0 where an earlier reply was lost
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_seconds: float | None = None  # RQ's, from the claim; None is without
    rq_traceparent: str | None = None  # W3C's, of RQ's meta; as it came

    @property
    def deadline(self) -> datetime | None:
        """When the attempt is to have ended: by the job's own deadline or RQ's time-out, whichever comes first. UTC."""
        ends = [self.job.deadline] if self.job.deadline is not None else []
        if self.timeout_seconds is not None:
            ends.append(self.claimed_at + timedelta(seconds=self.timeout_seconds))
        return min(ends, default=None)


@dataclass(frozen=True, slots=True)
class FunctionClaim:
    """A plain function's job that this worker holds: one execution under one lease. SQL never hears of it."""

    job_id: str
    execution_id: str
    epoch: int
    queue: str
    fields: Mapping[bytes, bytes]  # RQ's record before the claim
    claimed_at: datetime  # UTC, Redis's clock


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A queue record that is not a prompt job, or one that crashes workers; kept raw, never executed."""

    job_id: str
    queue: str
    error_code: str
    error_message: str
    raw: str  # the record's fields as JSON, bytes shown as text or hex
    enqueued_at: datetime | None
    diagnosis: Diagnosis | None = None  # of a job that crashes workers
    traceparent: str | None = None  # W3C's, of its producer's trace, where a job could be read; as it came


@dataclass(frozen=True, slots=True)
class JobStats:
    """Latency and memory figures of one attempt."""

    queue_ms: float  # enqueued -> claimed
    tokenize_ms: float
    ttft_ms: float | None  # claimed -> first token; None when no token came
    itl_mean_ms: float | None  # None below two tokens
    itl_p99_ms: float | None
    e2e_ms: float  # enqueued -> finished
    kv_blocks_peak: int
    kv_bytes_peak: int
    kv_block_seconds: float
    prefix_hit_tokens: int
    preemptions: int
    memory_peak_bytes: int  # device peak on a GPU, process peak (RSS) on a CPU
    # Had its blocks been reserved for prompt and max_tokens at its admission; None of earlier versions.
    kv_blocks_limit: int | None = None
    kv_block_seconds_limit: float | None = None
    drafted_tokens: int | None = None  # proposed by speculation and computed; None of earlier versions
    accepted_tokens: int | None = None  # of those: they became output


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """What one attempt cost, however it ended, and when it came how far.

    Engine seconds are the worker's time, each step's divided among its requests; over all attempts and the worker's
    own account they add up to its wall time. The `_ms` are from the claim; None for what the attempt did not reach.
    """

    engine_seconds: float = 0.0
    wasted_engine_seconds: float = 0.0  # of those: for tokens computed before, and for steps that failed
    kv_block_seconds_share: float = 0.0  # blocks held x time, each block's time divided among those that shared it
    computed_tokens: int = 0  # tokens run through the model
    recomputed_tokens: int = 0  # of those: computed before, and lost to a preemption or a failed step
    tokenized_ms: float | None = None
    admitted_ms: float | None = None  # first scheduled by the engine
    first_token_ms: float | None = None
    last_token_ms: float | None = None
    committed_ms: float | None = None  # its end is written to SQL; the acknowledgement follows


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt, after a back-off: not before `due_at` (UTC, Redis's clock). `retry_count` is what the job has
    spent by then, this retry included."""

    due_at: datetime
    retry_count: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a job's outputs. The first of them, index 0, is the job's own `text`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    logprobs: list[dict[str, Any]] | None
    mean_logprob: float | None = None  # by which best_of chose it


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt, ready to be committed and acknowledged. One with a `retry`, which is FAILED or REQUEUED,
    is not the end of its job."""

    claim: Claim
    state: AttemptState
    ended_at: datetime  # UTC
    text: str | None
    token_ids: tuple[int, ...]
    finish_reason: str | None  # stop, stop_string, tool_calls, length, cancelled, deadline
    prompt_tokens: int
    completion_tokens: int  # of all outputs that were generated, those that `best_of` did not keep included
    error_code: str | None
    error_message: str | None
    stats: JobStats | None
    retry: Retry | None = None
    logprobs: list[dict[str, Any]] | None = None  # an object an output token; of a job that asked for them
    choices: tuple[Choice, ...] = ()  # the outputs beside the first
    prompt_logprobs: list[dict[str, Any]] | None = None  # likewise; an object a prompt token
    prompt_token_ids: list[int] | None = None  # of a job that asked for token ids
    mean_logprob: float | None = None  # of the first output, where best_of chose it
    usage: AttemptUsage = field(default_factory=AttemptUsage)
