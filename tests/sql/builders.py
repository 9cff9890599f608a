"""Claims, outcomes and figures with sensible values, for tests that care about a few of them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.jobs import PromptJob
from worker.records import AttemptState, Claim, DeadRecord, JobStats, Outcome
from worker.sql.fleet import WorkerRecord
from worker.sql.job_changes import SubmittedJob

START = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def claim_of(job_id: str, epoch: int = 1, *, queue: str = "default", at_s: float = 10.0, **job: Any) -> Claim:
    """A claim of a job that was enqueued at START."""
    prompt = PromptJob(**{"prompt": f"What is {job_id}?", **job})
    return Claim(
        job_id=job_id,
        execution_id=f"{job_id}-{epoch}",
        epoch=epoch,
        queue=queue,
        job=prompt,
        payload_json=prompt.model_dump_json(exclude_defaults=True),
        enqueued_at=START,
        claimed_at=after(at_s),
    )


def stats_of(**changes: Any) -> JobStats:
    figures = JobStats(
        queue_ms=10_000.0,
        tokenize_ms=1.5,
        ttft_ms=80.25,
        itl_mean_ms=12.5,
        itl_p99_ms=20.0,
        e2e_ms=11_000.0,
        kv_blocks_peak=7,
        kv_bytes_peak=7 << 20,
        kv_block_seconds=3.5,
        prefix_hit_tokens=16,
        preemptions=0,
        memory_peak_bytes=3 << 31,
    )
    return replace(figures, **changes)


def outcome_of(claim: Claim, state: AttemptState = AttemptState.DONE, *, at_s: float = 20.0, **changes: Any) -> Outcome:
    """A whole outcome when `state` is DONE, one without output and figures otherwise."""
    is_done = state is AttemptState.DONE
    outcome = Outcome(
        claim=claim,
        state=state,
        ended_at=after(at_s),
        text="It is what it is." if is_done else None,
        token_ids=(5, 6, 7) if is_done else (),
        finish_reason="stop" if is_done else None,
        prompt_tokens=40,
        completion_tokens=3 if is_done else 0,
        error_code=None if is_done else f"{state.value}_code",
        error_message=None if is_done else f"it was {state.value}",
        stats=stats_of() if is_done else None,
    )
    return replace(outcome, **changes)


def submitted_of(job_id: str, **job: Any) -> SubmittedJob:
    claim = claim_of(job_id, **job)
    return SubmittedJob(job_id, claim.queue, claim.job, claim.payload_json, claim.enqueued_at)


def dead_of(job_id: str, **changes: Any) -> DeadRecord:
    record = DeadRecord(
        job_id=job_id,
        queue="default",
        error_code="unknown_function",
        error_message="the record names os.system",
        raw='{"func": "os.system"}',
        enqueued_at=None,
    )
    return replace(record, **changes)


def worker_of(name: str, **changes: Any) -> WorkerRecord:
    record = WorkerRecord(
        name=name,
        hostname="host",
        pid=4711,
        model="smollm2",
        device="cpu",
        dtype="float32",
        block_size=16,
        num_blocks=2048,
        bytes_per_block=368_640,
        pagemill_version="0.1.0",
        torch_version="2.11.0",
        transformers_version="5.24.0",
        started_at=START,
    )
    return replace(record, **changes)
