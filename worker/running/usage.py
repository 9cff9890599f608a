"""What an attempt has cost so far, and when it came how far, read off the job and its request."""

from engine.block_ledger import NS
from worker.records import AttemptUsage
from worker.running.held import HeldJob

MS = 1000.0  # milliseconds in a second


def usage_of(job: HeldJob) -> AttemptUsage:
    """Return the usage of a job that the engine has let go of, or never had; of one that it still has, the usage as of
    its last step."""
    figures = [request.figures for request in job.outputs]
    admitted = [each.admitted_at for each in figures if each.admitted_at is not None]
    times = [each.token_times for each in figures if each.token_times]
    return AttemptUsage(
        engine_seconds=sum(each.engine_ns for each in figures) / NS,
        wasted_engine_seconds=sum(each.wasted_ns for each in figures) / NS,
        kv_block_seconds_share=sum(each.kv_block_share_ns for each in figures) / NS,
        computed_tokens=sum(each.computed_tokens for each in figures),
        recomputed_tokens=sum(each.recomputed_tokens for each in figures),
        tokenized_ms=since_claim_ms(job, job.tokenized_at),
        admitted_ms=since_claim_ms(job, min(admitted, default=None)),
        first_token_ms=since_claim_ms(job, min((each[0] for each in times), default=None)),
        last_token_ms=since_claim_ms(job, max((each[-1] for each in times), default=None)),
    )


def since_claim_ms(job: HeldJob, at: float | None) -> float | None:
    """Return how long after its claim a job was somewhere; `at` is in seconds on the monotonic clock."""
    return None if at is None else (at - job.claimed_at) * MS
