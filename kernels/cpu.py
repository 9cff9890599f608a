"""Paged attention on the CPU: shared prefixes once a group, decodes padded together, prefill chunks one by one.

Each part is a call of torch's fused CPU attention, which returns the log-sum-exp of its scores; parts over different
keys of the same query are merged with it (the online softmax of FlashAttention, Dao et al. 2022, across calls).
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch
from kernels.shared_prefix import find_prefix_groups

SHORT_BLOCKS = 8  # runs of blocks up to here are padded to one length, whatever theirs


@dataclass(frozen=True, slots=True)
class BatchedPart:
    """Attention of several sets of query tokens, each over its own run of blocks, padded to one shape.

    A set is a decoding sequence's one query over its own blocks, or all queries of a group over the shared prefix. No
    query is hidden from a key that its set has, so the mask hides padding only.
    """

    rows: Tensor  # [num_sets * set_size] packed query tokens, a set padded by repeating one
    kept: Tensor | None  # positions in `rows` that are no padding; None keeps all
    block_ids: Tensor  # [num_sets * num_blocks], padded with a block of the set's own: no mask stops another's NaN
    num_sets: int
    mask: Tensor | None  # [num_sets, 1, 1, num_blocks * block_size], 0 or -inf; None where nothing is padded

    @property
    def kept_rows(self) -> Tensor:
        return self.rows if self.kept is None else self.rows[self.kept]


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A prefill chunk of one sequence over its own blocks."""

    start: int  # packed query tokens [start, stop)
    stop: int
    block_ids: Tensor  # [num_blocks]
    num_keys: int
    mask: Tensor | None  # [num_queries * queries_per_kv_head, num_keys], 0 or -inf; None where no key comes before


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """How one step's attention is split; built once, used by every layer."""

    chunks: tuple[ChunkPart, ...]
    decodes: tuple[BatchedPart, ...]
    shared: tuple[BatchedPart, ...]


@dataclass(frozen=True, slots=True)
class _QuerySet:
    rows: list[int]  # packed query tokens
    block_ids: list[int]
    num_keys: int


def plan_attention(batch: PagedBatch, queries_per_kv_head: int, dtype: torch.dtype) -> CpuPlan:
    """Split a step into parts. `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's."""
    size = batch.block_size
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]
    num_shared = [0] * len(batch.sequences)  # leading blocks that the sequence's group attends to for it
    shared = []
    for group in find_prefix_groups(batch):
        rows = [row for index in group.members for row in range(starts[index], starts[index + 1])]
        block_ids = list(batch.sequences[group.members[0]].block_ids[: group.num_blocks])
        shared.append(_QuerySet(rows, block_ids, group.num_blocks * size))
        for index in group.members:
            num_shared[index] = group.num_blocks

    chunks, decodes = [], []
    for index, sequence in enumerate(batch.sequences):
        num_keys = sequence.num_tokens - num_shared[index] * size
        block_ids = list(sequence.block_ids[num_shared[index] : -(-sequence.num_tokens // size)])
        if sequence.num_new == 1:
            decodes.append(_QuerySet([starts[index]], block_ids, num_keys))
        else:
            mask = None
            if num_keys > sequence.num_new:
                mask = _causal_mask(sequence.num_new, num_keys, queries_per_kv_head, dtype)
            chunks.append(ChunkPart(starts[index], starts[index + 1], torch.tensor(block_ids), num_keys, mask))
    return CpuPlan(tuple(chunks), _batched_parts(decodes, size, dtype), _batched_parts(shared, size, dtype))


def _batched_parts(sets: list[_QuerySet], block_size: int, dtype: torch.dtype) -> tuple[BatchedPart, ...]:
    """Pad sets of similar shape to one; others get a part of their own."""
    parts: list[list[_QuerySet]] = []
    for query_set in sorted(sets, key=lambda one: len(one.block_ids), reverse=True):
        if not parts or not _is_alike(query_set, parts[-1][0]):
            parts.append([])
        parts[-1].append(query_set)
    return tuple(_batched_part(alike, block_size, dtype) for alike in parts)


def _is_alike(query_set: _QuerySet, longest: _QuerySet) -> bool:
    """Whether padding the set costs less than another call: keys cost reads, queries hardly anything."""
    num_blocks, most = len(query_set.block_ids), len(longest.block_ids)
    few, many = sorted((len(query_set.rows), len(longest.rows)))
    return (num_blocks * 4 >= most * 3 or most <= SHORT_BLOCKS) and few * 4 >= many


def _batched_part(sets: list[_QuerySet], block_size: int, dtype: torch.dtype) -> BatchedPart:
    num_blocks = max(len(query_set.block_ids) for query_set in sets)
    set_size = max(len(query_set.rows) for query_set in sets)
    num_keys = torch.tensor([query_set.num_keys for query_set in sets])
    set_sizes = torch.tensor([len(query_set.rows) for query_set in sets])
    hidden = torch.arange(num_blocks * block_size)[None, :] >= num_keys[:, None]
    real = (torch.arange(set_size)[None, :] < set_sizes[:, None]).flatten()
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]
    return BatchedPart(
        rows=torch.tensor([s.rows + s.rows[-1:] * (set_size - len(s.rows)) for s in sets]).flatten(),
        kept=None if real.all() else real.nonzero().flatten(),
        block_ids=torch.tensor(
            [s.block_ids + s.block_ids[-1:] * (num_blocks - len(s.block_ids)) for s in sets]
        ).flatten(),
        num_sets=len(sets),
        mask=mask if hidden.any() else None,
    )


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
        k, v = k[:, :, : chunk.num_keys], v[:, :, : chunk.num_keys]
        rows = slice(chunk.start, chunk.stop)
        if chunk.mask is None:
            output[rows], part_lse = _attend_causally(q[rows], k, v, scale)
        else:
            output[rows], part_lse = _attend_sets(q[rows], 1, k, v, scale, chunk.mask)
        if lse is not None:
            lse[rows] = part_lse
    for part in plan.decodes:
        output[part.rows], part_lse = _attend_part(q, key_cache, value_cache, part, scale)
        if lse is not None:
            lse[part.rows] = part_lse
    for part in plan.shared:
        assert lse is not None, "allocated for shared parts"
        out, part_lse = _attend_part(q, key_cache, value_cache, part, scale)
        rows_kept = part.kept_rows
        output[rows_kept] = _merge(output[rows_kept], lse[rows_kept], out, part_lse).to(output.dtype)
    return output.view(num_tokens, num_heads, head_dim)


def _attend_part(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, part: BatchedPart, scale: float
) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of a part's kept rows."""
    k, v = _gather(key_cache, value_cache, part.block_ids, part.num_sets)
    out, lse = _attend_sets(q[part.rows], part.num_sets, k, v, scale, part.mask)
    return (out, lse) if part.kept is None else (out[part.kept], lse[part.kept])


def _gather(key_cache: Tensor, value_cache: Tensor, block_ids: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return K and V of `num_rows` equal runs of blocks: [num_rows, num_kv_heads, num_keys, head_dim], strided."""
    num_kv_heads, head_dim = key_cache.shape[2:]
    shape = (num_rows, -1, num_kv_heads, head_dim)
    return (
        key_cache.index_select(0, block_ids).view(shape).transpose(1, 2),
        value_cache.index_select(0, block_ids).view(shape).transpose(1, 2),
    )


def _attend_sets(
    q: Tensor, num_sets: int, k: Tensor, v: Tensor, scale: float, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attend with equal sets of query tokens to one run of keys each.

    q: [num_rows, num_kv_heads, queries_per_kv_head, head_dim], a set's rows in turn; k, v: [num_sets, num_kv_heads,
    num_keys, head_dim]. A KV head's query heads become rows of one matrix, so K and V are never repeated. Returns the
    output, shaped as q, and the natural log-sum-exp of the scaled scores, shaped as q without head_dim.
    """
    num_rows, num_kv_heads, per_head, head_dim = q.shape
    matrix = q.view(num_sets, num_rows // num_sets, num_kv_heads, per_head, head_dim).transpose(1, 2).flatten(2, 3)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        matrix, k, v, 0.0, False, attn_mask=mask, scale=scale
    )
    out = out.unflatten(2, (-1, per_head)).transpose(1, 2).flatten(0, 1)
    lse = lse.unflatten(2, (-1, per_head)).transpose(1, 2).flatten(0, 1)
    return out, lse


def _attend_causally(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend with a sequence's tokens to themselves and those before; half the work of a mask. Shapes as above."""
    num_rows, num_kv_heads, per_head, head_dim = q.shape
    heads = q.flatten(1, 2).transpose(0, 1).unsqueeze(0)  # [1, num_heads, num_rows, head_dim]
    k, v = (t.repeat_interleave(per_head, dim=1) for t in (k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(heads, k, v, 0.0, True, scale=scale)
    shape = (num_rows, num_kv_heads, per_head)
    return out[0].transpose(0, 1).reshape(*shape, head_dim), lse[0].transpose(0, 1).reshape(shape)


def _merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> Tensor:
    """Combine attention over two disjoint sets of keys."""
    lse = torch.logaddexp(lse_a, lse_b)
    return out_a * torch.exp(lse_a - lse).unsqueeze(-1) + out_b * torch.exp(lse_b - lse).unsqueeze(-1)
