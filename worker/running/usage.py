"""What an attempt has cost so far, and when it came how far, read off the job and its request."""

from engine.block_ledger import NS
from worker.records import AttemptUsage
from worker.running.held import HeldJob

MS = 1000.0  # milliseconds in a second


def usage_of(job: HeldJob) -> AttemptUsage:
    """Return the usage of a job that the engine has let go of, or never had; of one that it still has, the usage as of
    its last step."""
    if job.request is None:
        return AttemptUsage(tokenized_ms=since_claim_ms(job, job.tokenized_at))
    figures = job.request.figures
    times = figures.token_times
    return AttemptUsage(
        engine_seconds=figures.engine_ns / NS,
        wasted_engine_seconds=figures.wasted_ns / NS,
        kv_block_seconds_share=figures.kv_block_share_ns / NS,
        computed_tokens=figures.computed_tokens,
        recomputed_tokens=figures.recomputed_tokens,
        tokenized_ms=since_claim_ms(job, job.tokenized_at),
        admitted_ms=since_claim_ms(job, figures.admitted_at),
        first_token_ms=since_claim_ms(job, times[0] if times else None),
        last_token_ms=since_claim_ms(job, times[-1] if times else None),
    )


def since_claim_ms(job: HeldJob, at: float | None) -> float | None:
    """Return how long after its claim a job was somewhere; `at` is in seconds on the monotonic clock."""
    return None if at is None else (at - job.claimed_at) * MS
