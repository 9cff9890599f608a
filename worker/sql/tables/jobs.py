"""Jobs, their attempts, results and figures, and the workers that ran them.

Every time is UTC. Names and units of figures are those of `worker.records`.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from worker.records import AttemptState, JobState
from worker.sql.tables.base import AutoId, Base, JobKey

UNFINISHED = "state IN ('queued', 'running')"  # the condition of an index; a query must say it in the same words
UNFINISHED_INDEX = "ix_jobs_enqueued_at_id"


class BatchRow(Base):
    """Jobs submitted together."""

    __tablename__ = "batches"

    id: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int | None]  # jobs that its producer announced
    created_at: Mapped[datetime]  # when the first of its jobs to be seen was enqueued


class JobRow(Base):
    """The durable unit of work. `epoch` is that of its latest claim, 0 before the first."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "queue"),
        Index(None, "batch_id"),
        Index(None, "ended_at"),
        Index(None, "tenant", "model"),
        Index(
            UNFINISHED_INDEX,
            "enqueued_at",
            "id",
            sqlite_where=text(UNFINISHED),
            postgresql_where=text(UNFINISHED),
        ),
        CheckConstraint("epoch >= 0", name="epoch"),
        CheckConstraint("attempt_count >= 0", name="attempt_count"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # RQ's job id
    queue: Mapped[str]
    tenant: Mapped[str | None]  # None in a dead-lettered record that is no prompt job
    model: Mapped[str | None]  # as the producer asked; None means the worker's own
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id"))
    custom_id: Mapped[str | None]
    payload: Mapped[str]  # the job's JSON as enqueued; a dead-lettered record's raw form
    state: Mapped[JobState]
    epoch: Mapped[int]
    attempt_count: Mapped[int]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    diagnosis: Mapped[str | None]  # JSON: what it takes to reproduce the end of a dead-lettered job
    enqueued_at: Mapped[datetime | None]  # None in a dead-lettered record that does not tell
    deadline_at: Mapped[datetime | None]  # it is of no use to anybody afterwards
    retry_at: Mapped[datetime | None]  # it waits out a back-off until then
    retry_count: Mapped[int] = mapped_column(server_default="0")  # retries it has spent; hand-backs spend none
    started_at: Mapped[datetime | None]  # the first claim
    ended_at: Mapped[datetime | None]


class AttemptRow(Base):
    """One try at a job, under one lease."""

    __tablename__ = "attempts"
    __table_args__ = (UniqueConstraint("job_id", "epoch"),)

    id: Mapped[AutoId]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    epoch: Mapped[int]
    worker_name: Mapped[str]
    state: Mapped[AttemptState]
    started_at: Mapped[datetime]  # the claim
    ended_at: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    # What it cost, and when it came how far; `worker.records.AttemptUsage` defines each. None while it runs, and for
    # good where its worker died.
    engine_seconds: Mapped[float | None]
    wasted_engine_seconds: Mapped[float | None]
    kv_block_seconds_share: Mapped[float | None]
    computed_tokens: Mapped[int | None]
    recomputed_tokens: Mapped[int | None]
    tokenized_ms: Mapped[float | None]
    admitted_ms: Mapped[float | None]
    first_token_ms: Mapped[float | None]
    last_token_ms: Mapped[float | None]
    committed_ms: Mapped[float | None]


class ResultRow(Base):
    """A job's output: at most one per job, of the attempt that ended it. Of several outputs it is the first."""

    __tablename__ = "results"

    job_id: Mapped[JobKey]
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id", ondelete="CASCADE"), unique=True)
    text: Mapped[str]
    token_ids: Mapped[list[int]]
    finish_reason: Mapped[str | None]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]  # of all outputs that were generated
    created_at: Mapped[datetime]
    logprobs: Mapped[list[dict[str, Any]] | None]  # of a job that asked for them; an object an output token
    prompt_logprobs: Mapped[list[dict[str, Any]] | None]  # likewise; an object a prompt token
    prompt_token_ids: Mapped[list[int] | None]  # of a job that asked for token ids
    mean_logprob: Mapped[float | None]  # of the output's tokens, by which best_of chose it


class ChoiceRow(Base):
    """A further output of a job with several: those behind the first, which is the job's result."""

    __tablename__ = "choices"

    job_id: Mapped[str] = mapped_column(ForeignKey("results.job_id", ondelete="CASCADE"), primary_key=True)
    choice_index: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)  # from 1
    text: Mapped[str]
    token_ids: Mapped[list[int]]
    finish_reason: Mapped[str | None]
    logprobs: Mapped[list[dict[str, Any]] | None]  # as in results
    mean_logprob: Mapped[float | None]  # likewise


class JobStatsRow(Base):
    """Latency and memory figures of the attempt that ended the job; `worker.records.JobStats` defines each."""

    __tablename__ = "job_stats"
    __table_args__ = (Index(None, "e2e_ms"),)  # the slowest jobs

    job_id: Mapped[JobKey]
    queue_ms: Mapped[float]
    tokenize_ms: Mapped[float]
    ttft_ms: Mapped[float | None]
    itl_mean_ms: Mapped[float | None]
    itl_p99_ms: Mapped[float | None]
    e2e_ms: Mapped[float]
    kv_blocks_peak: Mapped[int]
    kv_bytes_peak: Mapped[int]
    kv_block_seconds: Mapped[float]
    prefix_hit_tokens: Mapped[int]
    preemptions: Mapped[int]
    memory_peak_bytes: Mapped[int]
    kv_blocks_limit: Mapped[int | None]
    kv_block_seconds_limit: Mapped[float | None]
    drafted_tokens: Mapped[int | None]
    accepted_tokens: Mapped[int | None]


class WorkerRow(Base):
    """One worker process: what it runs on, when it was last seen and what it has done."""

    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(primary_key=True)
    hostname: Mapped[str]
    pid: Mapped[int]
    model: Mapped[str]
    device: Mapped[str]
    dtype: Mapped[str]
    block_size: Mapped[int]  # tokens
    num_blocks: Mapped[int]
    bytes_per_block: Mapped[int]
    pagemill_version: Mapped[str]
    torch_version: Mapped[str]
    transformers_version: Mapped[str]
    started_at: Mapped[datetime]
    last_heartbeat_at: Mapped[datetime]
    engine_answered_at: Mapped[datetime | None]  # when its engine last proved that it steps
    stopped_at: Mapped[datetime | None]
    jobs_done: Mapped[int]
    jobs_failed: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    prefix_hit_tokens: Mapped[int]
    price_per_engine_hour: Mapped[float | None]  # None where nobody said what an hour costs
    price_currency: Mapped[str | None]
    kv_dtype: Mapped[str | None]  # None, here and below, of workers that did not say yet
    kv_host_blocks: Mapped[int | None]  # KV blocks that its host's memory can hold; 0 where it does not offload
    kv_blocks_out: Mapped[int | None]  # copied to the host's memory
    kv_blocks_back: Mapped[int | None]  # copied back: not computed again
    longest_sequence: Mapped[int | None]  # tokens that its KV cache has room for
