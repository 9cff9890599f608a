"""Paged attention on the CPU: shared prefixes once per group, decodes in padded buckets, prefill chunks one by one.

Each part is a call of torch's fused CPU attention, which returns the log-sum-exp of its scores; parts over different
keys of the same query are merged with it (the online softmax of FlashAttention, Dao et al. 2022, across calls).
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch
from kernels.shared_prefix import find_prefix_groups


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Unmasked attention of many query tokens over the same blocks."""

    rows: Tensor  # [num_rows] packed query tokens
    block_ids: Tensor  # [num_blocks]


@dataclass(frozen=True, slots=True)
class DecodePart:
    """One query token a sequence, over each sequence's own blocks, padded to the longest."""

    rows: Tensor  # [num_sequences]
    block_ids: Tensor  # [num_sequences * num_blocks], padded with block 0
    mask: Tensor  # [num_sequences, 1, 1, num_blocks * block_size], 0 or -inf, in the query's dtype


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A prefill chunk of one sequence over its own blocks."""

    start: int  # packed query tokens [start, stop)
    stop: int
    block_ids: Tensor  # [num_blocks]
    num_keys: int
    mask: Tensor  # [num_queries * queries_per_kv_head, num_keys], 0 or -inf


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """How one step's attention is split; built once, used by every layer."""

    chunks: tuple[ChunkPart, ...]
    decodes: tuple[DecodePart, ...]
    shared: tuple[SharedPart, ...]


def plan_attention(batch: PagedBatch, queries_per_kv_head: int, dtype: torch.dtype) -> CpuPlan:
    """Split a step into parts. `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's."""
    groups = find_prefix_groups(batch)
    num_shared = [0] * len(batch.sequences)  # leading blocks that the sequence's group attends to for it
    for group in groups:
        for index in group.members:
            num_shared[index] = group.num_blocks
    starts = [0]
    for sequence in batch.sequences:
        starts.append(starts[-1] + sequence.num_new)

    chunks = []
    decodes: defaultdict[int, list[tuple[int, list[int], int]]] = defaultdict(list)
    for index, sequence in enumerate(batch.sequences):
        num_keys = sequence.num_tokens - num_shared[index] * batch.block_size
        block_ids = list(sequence.block_ids[num_shared[index] : -(-sequence.num_tokens // batch.block_size)])
        if sequence.num_new == 1:
            decodes[_bucket(len(block_ids))].append((starts[index], block_ids, num_keys))
        else:
            mask = _causal_mask(sequence.num_new, num_keys, queries_per_kv_head, dtype)
            chunks.append(ChunkPart(starts[index], starts[index + 1], torch.tensor(block_ids), num_keys, mask))
    return CpuPlan(
        tuple(chunks),
        tuple(_decode_part(entries, batch.block_size, dtype) for entries in decodes.values()),
        tuple(
            SharedPart(
                torch.cat([torch.arange(starts[index], starts[index + 1]) for index in group.members]),
                torch.tensor(batch.sequences[group.members[0]].block_ids[: group.num_blocks]),
            )
            for group in groups
        ),
    )


def _bucket(num_blocks: int) -> int:
    """Return the length class of a decode, in blocks: 4, 6, 8, 12, 16, 24, … so that padding stays below a third."""
    power = max(4, 1 << (num_blocks - 1).bit_length())
    return power * 3 // 4 if power > 4 and num_blocks <= power * 3 // 4 else power


def _decode_part(entries: list[tuple[int, list[int], int]], block_size: int, dtype: torch.dtype) -> DecodePart:
    width = max(len(block_ids) for _, block_ids, _ in entries)
    padded = [block_ids + [0] * (width - len(block_ids)) for _, block_ids, _ in entries]
    num_keys = torch.tensor([keys for _, _, keys in entries])
    hidden = torch.arange(width * block_size)[None, :] >= num_keys[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return DecodePart(torch.tensor([row for row, _, _ in entries]), torch.tensor(padded).flatten(), mask[:, None, None])


def _causal_mask(num_queries: int, num_keys: int, queries_per_kv_head: int, dtype: torch.dtype) -> Tensor:
    positions = torch.arange(num_keys - num_queries, num_keys).repeat_interleave(queries_per_kv_head)
    hidden = torch.arange(num_keys)[None, :] > positions[:, None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: CpuPlan, scale: float) -> Tensor:
    """Attend as the plan says. Shapes as in `kernels.reference.paged_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    q = query.view(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    output = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32) if plan.shared else None
    for chunk in plan.chunks:
        k, v = _gather(key_cache, value_cache, chunk.block_ids, 1)
        rows = slice(chunk.start, chunk.stop)
        out, part_lse = _attend_rows(q[rows], k[:, :, : chunk.num_keys], v[:, :, : chunk.num_keys], scale, chunk.mask)
        output[rows] = out
        if lse is not None:
            lse[rows] = part_lse
    for decode in plan.decodes:
        k, v = _gather(key_cache, value_cache, decode.block_ids, len(decode.rows))
        out, part_lse = _flash(q[decode.rows], k, v, scale, decode.mask)
        output[decode.rows] = out
        if lse is not None:
            lse[decode.rows] = part_lse
    for part in plan.shared:
        assert lse is not None
        k, v = _gather(key_cache, value_cache, part.block_ids, 1)
        out, part_lse = _attend_rows(q[part.rows], k, v, scale, None)
        output[part.rows] = _merge(output[part.rows], lse[part.rows], out, part_lse).to(output.dtype)
    return output.view(num_tokens, num_heads, head_dim)


def _gather(key_cache: Tensor, value_cache: Tensor, block_ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return K and V of `num_rows` equal runs of blocks: [num_rows, num_kv_heads, num_keys, head_dim], strided."""
    num_kv_heads, head_dim = key_cache.shape[2:]
    shape = (num_rows, -1, num_kv_heads, head_dim)
    return (
        key_cache.index_select(0, block_ids).view(shape).transpose(1, 2),
        value_cache.index_select(0, block_ids).view(shape).transpose(1, 2),
    )


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attend with many query tokens to one run of keys.

    q: [num_rows, num_kv_heads, queries_per_kv_head, head_dim]; k, v: [1, num_kv_heads, num_keys, head_dim]. A KV head's
    query heads become rows of one matrix, so K and V are never repeated.
    """
    num_rows, num_kv_heads, per_head, head_dim = q.shape
    rows = q.transpose(0, 1).reshape(1, num_kv_heads, num_rows * per_head, head_dim)
    out, lse = _flash(rows, k, v, scale, mask)
    out = out.view(num_kv_heads, num_rows, per_head, head_dim).transpose(0, 1)
    return out, lse.view(num_kv_heads, num_rows, per_head).transpose(0, 1)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output, shaped as q, and the natural log-sum-exp of the scaled scores, [batch, heads, queries]."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=mask, scale=scale
    )
    return out, lse


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Combine attention over two disjoint sets of keys."""
    lse = torch.logaddexp(lse_a, lse_b)
    return out_a * torch.exp(lse_a - lse).unsqueeze(-1) + out_b * torch.exp(lse_b - lse).unsqueeze(-1)
