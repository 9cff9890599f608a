"""Paged attention on the CPU, in matrix products: torch's fused CPU attention spends most of its time elsewhere.

Scores are rounded to the type of the model, as in transformers' eager attention, and summed in float32. A decoding
sequence's scores over a shared prefix and over its own blocks stand side by side under one softmax, so that nothing
has to be merged afterwards, while the prefix is read once for all that share it.

KV heads come first in all tensors here. Of quantised caches, decodes multiply the scales into their few scores and
weights; chunks multiply them into the many keys and values once.
"""

import torch
from torch import Tensor

from kernels.cpu_cache import Cache, Gathered
from kernels.cpu_plan import ChunkPart, CpuPlan, DecodePart, SharedPart
from kernels.kv_scales import KVScales, quantise
from kernels.score_rules import ScoreRules


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: CpuPlan,
    rules: ScoreRules,
    scales: KVScales | None = None,
) -> Tensor:
    """Attend as the plan says, which was made for the same window. Shapes as in `kernels.reference.paged_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    output = query.new_empty(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    # A KV head's query heads become rows of one matrix, so K and V are never repeated.
    q = query.reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim).transpose(0, 1)
    keys, values = Cache.both(key_cache, value_cache, scales, query.dtype)
    for chunk in plan.chunks:
        _attend_chunk(q, keys, values, chunk, rules, output.transpose(0, 1))
    for part in plan.decodes:
        attended = _attend_decodes(q.index_select(1, part.rows), keys, values, part, rules)
        output.index_copy_(0, part.rows, attended.transpose(0, 1))
    return output.view(num_tokens, num_heads, head_dim)


def store(x: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Write K or V into its slots. Shapes as in `kernels.reference.store_kv`."""
    block_size = cache.shape[1]
    if cache.stride(0) == block_size * cache.stride(1):
        cache.flatten(0, 1).index_copy_(0, slot_mapping, x)
    else:  # blocks lie apart
        cache.index_put_((slot_mapping // block_size, slot_mapping % block_size), x)


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks of K, of V or of their scales. Shapes as in `kernels.reference.copy_blocks`."""
    if cache.dtype.itemsize == 1:  # torch does not gather fp8, but bytes
        cache = cache.view(torch.int8)
    cache.index_copy_(0, targets, cache.index_select(0, sources))


def store_quantised_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, scales: KVScales
) -> None:
    """Write K and V and their scales into their slots, quantised together. As `kernels.reference.store_kv`."""
    numbers, scales_of = quantise(torch.stack((key, value)), key_cache.dtype, scales.key.dtype)
    for x, cache in zip(numbers.view(torch.int8), (key_cache, value_cache), strict=True):  # torch copies no fp8
        store(x, cache.view(torch.int8), slot_mapping)
    for x, cache in zip(scales_of, (scales.key, scales.value), strict=True):
        store(x, cache, slot_mapping)


def _attend_chunk(q: Tensor, keys: Cache, values: Cache, chunk: ChunkPart, rules: ScoreRules, output: Tensor) -> None:
    """Write a chunk's rows of `output`: [num_kv_heads, num_tokens, queries_per_kv_head, head_dim], as q."""
    k, v = (cache.gather(chunk.block_ids, 1).multiplied() for cache in (keys, values))
    for tile in chunk.tiles:
        rows, seen = slice(tile.start, tile.stop), slice(tile.first_key, tile.stop_key)
        scores = scores_of(q[:, rows].flatten(1, 2), Gathered(k[:, seen], None), rules)
        scores[:, :, -tile.mask.shape[1] :] += tile.mask
        scores = scores.view(*q[:, rows].shape[:3], -1)
        if rules.slopes is not None:
            keys_at = torch.arange(tile.first_key, tile.stop_key)
            add_slopes(scores, rules.slopes, keys_at - keys_at[tile.start - tile.stop :, None])
        weights = weights_of(scores, rules).flatten(1, 2)
        output[:, rows] = torch.bmm(weights, v[:, seen]).view_as(q[:, rows])


def _attend_decodes(q: Tensor, keys: Cache, values: Cache, part: DecodePart, rules: ScoreRules) -> Tensor:
    """Return the output of the part's rows. q and output: [num_kv_heads, num_rows, queries_per_kv_head, head_dim]."""
    num_kv_heads, num_rows, per_head, _ = q.shape
    own_scores = scores_of(q.flatten(0, 1), keys.gather(part.own.block_ids, num_rows), rules)
    own_scores = own_scores.view(num_kv_heads, num_rows, per_head, -1)
    if part.own.mask is not None:
        own_scores += part.own.mask
    if rules.slopes is not None:
        add_slopes(own_scores, rules.slopes, part.own_distances + torch.arange(part.own.num_keys))
    own_values = values.gather(part.own.block_ids, num_rows)
    if not part.shared:
        return _sums(weights_of(own_scores, rules).flatten(0, 1), own_values).view(q.shape)
    width = part.num_shared_keys
    scores = q.new_empty(num_kv_heads, num_rows, per_head, width + part.own.num_keys)
    if part.has_gaps:
        scores[..., :width] = float("-inf")
    scores[..., width:] = own_scores
    for shared in part.shared:
        _put_shared_scores(scores, q, keys, shared, rules)
    if rules.slopes is not None:
        add_slopes(scores[..., :width], rules.slopes, part.shared_distances + torch.arange(width))
    weights = weights_of(scores, rules)
    output = _sums(weights[..., width:].flatten(0, 1), own_values).view(q.shape)
    for shared in part.shared:
        _add_shared_output(output, weights, values, shared)
    return output


def _put_shared_scores(scores: Tensor, q: Tensor, keys: Cache, shared: SharedPart, rules: ScoreRules) -> None:
    """Write the scores of the members over their groups' prefixes, the first columns of `scores`."""
    runs, (num_kv_heads, _, per_head, head_dim) = shared.runs, q.shape
    matrices = q.index_select(1, shared.members).view(num_kv_heads * runs.num_runs, -1, head_dim)
    by_member = scores_of(matrices, keys.gather(runs.block_ids, runs.num_runs), rules)
    by_member = by_member.view(num_kv_heads, -1, per_head, runs.num_keys)
    if runs.mask is not None:
        by_member += runs.mask.repeat_interleave(by_member.shape[1] // runs.num_runs, dim=0)
    if shared.kept is not None:
        by_member = by_member.index_select(1, shared.kept)
    scores[..., : runs.num_keys].index_copy_(1, shared.kept_members, by_member)


def _add_shared_output(output: Tensor, weights: Tensor, values: Cache, shared: SharedPart) -> None:
    """Add what the members get from their groups' prefixes."""
    runs, (num_kv_heads, _, per_head, head_dim) = shared.runs, output.shape
    chosen = weights[..., : runs.num_keys].index_select(1, shared.members)
    matrices = chosen.view(num_kv_heads * runs.num_runs, -1, runs.num_keys)
    by_member = _sums(matrices, values.gather(runs.block_ids, runs.num_runs))
    by_member = by_member.view(num_kv_heads, -1, per_head, head_dim)
    if shared.kept is not None:
        by_member = by_member.index_select(1, shared.kept)
    output.index_add_(1, shared.kept_members, by_member)


def scores_of(queries: Tensor, keys: Gathered, rules: ScoreRules) -> Tensor:
    """Return the unmasked scores, a matrix each: [n, num_queries, num_keys]. queries: [n, num_queries, head_dim]."""
    ignored = queries.new_empty(1, 1, 1)
    scores = torch.baddbmm(ignored, queries, keys.numbers.transpose(1, 2), beta=0, alpha=rules.scale)
    if keys.scales is not None:
        scores.mul_(keys.scales)
    return scores if rules.softcap is None else scores.div_(rules.softcap).tanh_().mul_(rules.softcap)


def _sums(weights: Tensor, values: Gathered) -> Tensor:
    """Return the weighted sums of values, [n, num_queries, head_dim]. weights: [n, num_queries, num_keys]."""
    return torch.bmm(weights if values.scales is None else weights * values.scales, values.numbers)


def add_slopes(scores: Tensor, slopes: Tensor, distances: Tensor) -> None:
    """Add slopes times key position - query position, [num_rows, num_keys], to scores as `weights_of` takes them."""
    by_head = slopes.float().view(scores.shape[0], 1, scores.shape[2], 1)
    scores += (by_head * distances[:, None]).to(scores.dtype)


def weights_of(scores: Tensor, rules: ScoreRules) -> Tensor:
    """Return the softmax of masked scores, [num_kv_heads, num_rows, queries_per_kv_head, num_keys]."""
    if rules.sinks is None:
        return scores.softmax(dim=-1)
    sinks = rules.sinks.to(scores.dtype).view(scores.shape[0], 1, scores.shape[2], 1)
    with_sinks = torch.cat((scores, sinks.expand(-1, scores.shape[1], -1, -1)), dim=-1)
    return with_sinks.softmax(dim=-1)[..., :-1]
