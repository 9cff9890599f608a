"""A small benchmark of attention on a GPU, each figure beside what it is held against, measured in the same run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from kernels import ops
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from kernels.triton_plan import SplitRule, plan_attention

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16  # an 8B model's
COPIED_BYTES = 1 << 30
WARM_UPS, REPETITIONS = 5, 20


@dataclass(frozen=True, slots=True)
class Workload:
    """One layer's attention over random values."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    batch: PagedBatch

    @property
    def kv_bytes(self) -> int:
        """K and V of all sequences, a shared block counted for each."""
        tokens = sum(sequence.num_tokens for sequence in self.batch.sequences)
        return 2 * tokens * self.key_cache[0, 0].numel() * self.key_cache.itemsize


def workload(sequences: tuple[PagedSequence, ...], dtype: torch.dtype, device: torch.device) -> Workload:
    num_blocks = 1 + max(max(sequence.block_ids) for sequence in sequences)
    cache = torch.randn(2, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype=dtype, device=device)
    num_tokens = sum(sequence.num_new for sequence in sequences)
    query = torch.randn(num_tokens, NUM_HEADS, HEAD_DIM, dtype=dtype, device=device)
    return Workload(query, cache[0], cache[1], PagedBatch(sequences, BLOCK_SIZE))


def decodes(num_sequences: int, num_tokens: int, num_shared: int = 0) -> tuple[PagedSequence, ...]:
    """Return decodes of equal length that share their first `num_shared` tokens, in scattered blocks."""
    shared, own = num_shared // BLOCK_SIZE, -(-(num_tokens - num_shared) // BLOCK_SIZE)
    order = torch.randperm(shared + num_sequences * own, generator=torch.Generator().manual_seed(0)).tolist()
    tables = [order[:shared] + order[shared + n * own : shared + (n + 1) * own] for n in range(num_sequences)]
    return tuple(PagedSequence(table, num_tokens - 1, 1) for table in tables)


def attend(work: Workload, rule: SplitRule | None = None) -> Callable[[], Tensor]:
    """Return a call that attends by a plan made beforehand, by a GPU's own rule unless one is given."""
    query, device = work.query, work.query.device
    if rule is None:
        plan: ops.AttentionPlan = ops.plan_attention(
            work.batch, num_heads=NUM_HEADS, num_kv_heads=NUM_KV_HEADS, dtype=query.dtype, device=device
        )
    else:
        plan = plan_attention(work.batch, NUM_HEADS // NUM_KV_HEADS, query.dtype, device, rule)
    rules = ScoreRules(HEAD_DIM**-0.5)
    return lambda: ops.paged_attention(query, work.key_cache, work.value_cache, plan, rules)


def measure(device: torch.device) -> dict[str, dict[str, float]]:
    """Return the figures; times in ms, bandwidths in GB/s."""
    with torch.inference_mode():
        return {"decode": _decode(device), "shared_prefix": _shared_prefix(device), "prefill": _prefill(device)}


def _decode(device: torch.device) -> dict[str, float]:
    """32 sequences of 2k tokens: bytes read a second, as a share of what a copy reads and writes."""
    source = torch.randn(COPIED_BYTES // 2, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy_gb_s = 2 * COPIED_BYTES / time_ms(lambda: target.copy_(source)) / 1e6
    work = workload(decodes(32, 2048), torch.bfloat16, device)
    decode_ms = time_ms(attend(work))
    read_gb_s = work.kv_bytes / decode_ms / 1e6
    return {"ms": decode_ms, "gb_s": read_gb_s, "copy_gb_s": copy_gb_s, "share_of_copy": read_gb_s / copy_gb_s}


def _shared_prefix(device: torch.device) -> dict[str, float]:
    """8 requests on an 8k prefix, with the prefix read once and for each."""
    work = workload(decodes(8, 8192 + 100, 8192), torch.bfloat16, device)
    rule = SplitRule.of(device, NUM_KV_HEADS)
    shared_ms = time_ms(attend(work, rule))
    apart_ms = time_ms(attend(work, replace(rule, min_saved_keys=1 << 40)))
    return {"shared_ms": shared_ms, "apart_ms": apart_ms, "speedup": apart_ms / shared_ms}


def _prefill(device: torch.device, num_tokens: int = 4096) -> dict[str, float]:
    """One chunk without context, against SDPA on contiguous tensors."""
    work = workload((PagedSequence(range(num_tokens // BLOCK_SIZE), 0, num_tokens),), torch.bfloat16, device)
    q = work.query.transpose(0, 1)[None].contiguous()
    k, v = (c.flatten(0, 1).transpose(0, 1)[None].contiguous() for c in (work.key_cache, work.value_cache))
    sdpa_ms = time_ms(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    paged_ms = time_ms(attend(work))
    return {"ms": paged_ms, "sdpa_ms": sdpa_ms, "speed_of_sdpa": sdpa_ms / paged_ms}


def time_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, in ms, as CUDA's events take it."""
    for _ in range(WARM_UPS):
        call()
    times: list[float] = []
    for _ in range(REPETITIONS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return median(times)
