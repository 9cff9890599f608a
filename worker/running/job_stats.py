"""The latency and memory figures of a job that the engine has finished, over all its outputs."""

from collections.abc import Sequence
from itertools import pairwise

from engine.config import EngineConfig
from engine.request import Request
from worker.records import JobStats
from worker.running.held import HeldJob
from worker.running.usage import MS


def stats_of(job: HeldJob, config: EngineConfig, bytes_per_block: int, memory_peak_bytes: int) -> JobStats:
    """Return the figures of a finished job on an engine of this configuration and size of block.

    A block that several of its outputs share counts once; blocks reserved for prompt and max_tokens would be those of
    each output. What the prefix cache gave is what the first output found there.
    """
    outputs = job.outputs
    first = outputs[0]
    gaps = sorted(later - earlier for request in outputs for earlier, later in pairwise(request.figures.token_times))
    began = [request.figures.token_times[0] for request in outputs if request.figures.token_times]
    # Enqueued on the producer's clock, claimed on Redis's: a skew must not give a negative time.
    queue_ms = max(0.0, (job.claim.claimed_at - job.claim.enqueued_at).total_seconds() * MS)
    blocks = first.figures if first.group is None else first.group.figures
    blocks_limit = config.whole_blocks_of(first.num_prompt_tokens + first.params.max_tokens)
    return JobStats(
        queue_ms=queue_ms,
        tokenize_ms=job.tokenize_ms,
        ttft_ms=(min(began) - job.claimed_at) * MS if began else None,
        itl_mean_ms=sum(gaps) / len(gaps) * MS if gaps else None,
        itl_p99_ms=gaps[-(-99 * len(gaps) // 100) - 1] * MS if gaps else None,  # nearest rank
        e2e_ms=queue_ms + (max(map(_finished_at, outputs)) - job.claimed_at) * MS,
        kv_blocks_peak=blocks.kv_blocks_peak,
        kv_bytes_peak=blocks.kv_blocks_peak * bytes_per_block,
        kv_block_seconds=blocks.kv_block_seconds,
        prefix_hit_tokens=first.figures.prefix_hit_tokens,
        preemptions=sum(request.figures.preemptions for request in outputs),
        memory_peak_bytes=memory_peak_bytes,
        kv_blocks_limit=blocks_limit * len(outputs),
        kv_block_seconds_limit=blocks_limit * _seconds_held(outputs),
        drafted_tokens=sum(request.figures.drafted_tokens for request in outputs),
        accepted_tokens=sum(request.figures.accepted_tokens for request in outputs),
    )


def _seconds_held(outputs: Sequence[Request]) -> float:
    """Return the time between admission and end, summed over outputs."""
    held = 0.0
    for request in outputs:
        admitted_at, finished_at = request.figures.admitted_at, _finished_at(request)
        held += 0.0 if admitted_at is None else finished_at - admitted_at
    return held


def _finished_at(request: Request) -> float:
    assert request.figures.finished_at is not None, "a finished request has its time"
    return request.figures.finished_at
