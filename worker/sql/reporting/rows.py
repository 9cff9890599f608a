"""What reports say: frozen rows. `group` has a value for each thing that was grouped by, in that order.

Names end in units; shares are parts between 0 and 1. None is unknown, or a ratio of nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from worker.records import JobState
from worker.sql.reporting.filters import GroupValue

Group = tuple[GroupValue, ...]


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """What became of the jobs. Rates are over `span_s`, and None where that is zero or unknown.

    Tokens count every job with a result; `prefix_hit_share` is the part of its prompt tokens that the cache held.
    """

    jobs_by_state: Mapping[JobState, int]
    failures_by_error_code: Mapping[str, int]  # of jobs that failed or are dead
    prompt_tokens: int
    completion_tokens: int
    prefix_hit_tokens: int
    prefix_hit_share: float | None
    preemptions: int
    jobs_with_retries: int  # more than one attempt
    first_claim_at: datetime | None
    last_end_at: datetime | None
    span_s: float | None  # first claim -> last end
    completion_tokens_per_s: float | None
    jobs_done_per_s: float | None


@dataclass(frozen=True, slots=True)
class TotalsRow:
    """What became of a group's jobs. Jobs that have not ended are in no period of time: its value is None."""

    group: Group
    jobs: int
    jobs_queued: int
    jobs_running: int
    jobs_done: int
    jobs_failed: int
    jobs_cancelled: int
    jobs_dead: int
    jobs_with_retries: int
    prompt_tokens: int
    completion_tokens: int
    prefix_hit_tokens: int
    prefix_hit_share: float | None
    preemptions: int
    first_claim_at: datetime | None
    last_end_at: datetime | None


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """What a group got through. Rates are over the period that it is grouped by, else from first claim to last end."""

    group: Group
    jobs_done: int
    jobs_failed: int  # dead ones too
    jobs_cancelled: int
    prompt_tokens: int
    completion_tokens: int
    jobs_done_per_s: float | None
    prompt_tokens_per_s: float | None
    completion_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """One latency over the jobs that are done and have it, in milliseconds; None where no job has.

    Percentiles are by nearest rank, and off by `relative_error` of themselves at the most; the rest is exact.
    """

    group: Group
    metric: str
    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    relative_error: float


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One memory figure over the jobs that have it, in the unit that its name tells; otherwise as `LatencyRow`."""

    group: Group
    metric: str
    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    total: float | None  # only where a sum over jobs means something
    relative_error: float


@dataclass(frozen=True, slots=True)
class SavingsRow:
    """KV memory, in blocks times seconds, that a group's jobs took, against what they would have taken.

    Reserved: prompt and max_tokens from admission to end. Unshared: each job with all of its blocks to itself.
    """

    group: Group
    kv_block_seconds: float  # shared blocks in full for each sharer
    kv_block_seconds_limit: float | None
    kv_block_seconds_share: float | None  # each shared block split among its sharers
    saved_against_limit_block_seconds: float | None
    saved_against_limit_share: float | None
    saved_by_sharing_block_seconds: float | None
    saved_by_sharing_share: float | None


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """How much of a group's prompts the prefix cache held, over jobs with a result and figures."""

    group: Group
    jobs: int
    jobs_with_hit: int
    prompt_tokens: int
    prefix_hit_tokens: int
    hit_rate: float | None  # None without prompt tokens


@dataclass(frozen=True, slots=True)
class FailureRow:
    """Jobs that failed or are dead, by why."""

    group: Group
    error_code: str
    state: str
    jobs: int
    first_at: datetime
    last_at: datetime
    example_message: str | None


@dataclass(frozen=True, slots=True)
class WasteRow:
    """What was computed for nothing, by why: recomputed, handed_back, lost, fenced, retried."""

    group: Group
    reason: str
    attempts: int
    wasted_tokens: int
    wasted_engine_seconds: float


@dataclass(frozen=True, slots=True)
class CostsRow:
    """What a group's jobs cost, over all their attempts; no two currencies are added up."""

    group: Group
    currency: str | None
    jobs: int
    attempts: int
    engine_seconds: float
    wasted_engine_seconds: float
    kv_block_seconds_share: float
    cost: float | None  # None without a price


@dataclass(frozen=True, slots=True)
class WorkerTimeRow:
    """Where workers' time went, and what it cost, by currency."""

    group: Group
    currency: str | None
    wall_seconds: float
    engine_seconds: float
    wasted_engine_seconds: float
    idle_seconds: float
    loading_seconds: float
    overhead_seconds: float
    kv_held_share: float | None  # of the KV cache, over the time that there was one: what requests held
    kv_cached_share: float | None  # what nobody held, kept for the prefix cache
    cost: float | None
    idle_cost: float | None


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """What came of a slot of a schedule; the view `schedule_history` documents each."""

    schedule: str
    kind: str
    slot_at: datetime
    slots: int
    state: str
    skip_reason: str | None
    message: str | None
    batch_id: str | None
    jobs: int
    jobs_done: int
    jobs_failed: int
    last_job_ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class SlowJob:
    """One job with its phases. The `_ms` of phases are from the claim of the attempt that ended it."""

    job_id: str
    state: JobState
    error_code: str | None
    queue: str
    tenant: str | None
    model: str | None
    batch_id: str | None
    custom_id: str | None
    attempts: int
    ended_at: datetime
    worker_name: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    prefix_hit_tokens: int
    queue_ms: float
    tokenized_ms: float | None
    admitted_ms: float | None
    first_token_ms: float | None
    last_token_ms: float | None
    committed_ms: float | None
    e2e_ms: float
