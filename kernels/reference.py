"""Oracles: each kernel's meaning in the plainest torch, float32 inside. Slow, and right."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.draws import Draws
from kernels.kv_scales import GREATEST, KVScales
from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules


def store_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Write each token's K and V into its slot, and its scales where the caches are quantised.

    key, value: [num_tokens, num_kv_heads, head_dim]. Caches, mutated: [num_blocks, block_size, num_kv_heads, head_dim].
    slot_mapping: [num_tokens], int64, distinct.
    """
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slot_mapping.tolist()):
        block, offset = divmod(slot, block_size)
        if scales is None:
            key_cache[block, offset] = key[token]
            value_cache[block, offset] = value[token]
        else:
            _store_quantised(key[token], key_cache[block, offset], scales.key[block, offset])
            _store_quantised(value[token], value_cache[block, offset], scales.value[block, offset])


def copy_blocks(
    key_cache: Tensor,
    value_cache: Tensor,
    sources: Tensor,
    targets: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Copy block `sources[i]` to block `targets[i]`, and its scales where the caches are quantised.

    Caches and scales, mutated: [num_blocks, ...]. sources, targets: [num_copies], int64; the targets are distinct, and
    none of them is a source.
    """
    caches = [key_cache, value_cache] if scales is None else [key_cache, value_cache, scales.key, scales.value]
    for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
        for cache in caches:
            cache[target] = cache[source]


def _store_quantised(x: Tensor, numbers: Tensor, scales: Tensor) -> None:
    """x, numbers: [num_kv_heads, head_dim]; scales: [num_kv_heads]."""
    greatest = GREATEST[numbers.dtype]
    for head, row in enumerate(x.float()):
        scales[head] = row.abs().max() / greatest
        divided = row / scales[head].float() if scales[head] > 0 else torch.zeros_like(row)
        divided = divided.clamp(-greatest, greatest)
        numbers[head] = (divided if numbers.dtype.is_floating_point else divided.round()).to(numbers.dtype)


def merge_parts(
    part_outputs: Tensor, part_lse: Tensor, parts_of: Sequence[Sequence[int]], sinks: Tensor | None
) -> Tensor:
    """Return attention over several ranges of keys, given the output over each and its log-sum-exp.

    part_outputs: [num_parts, num_heads, head_dim]; part_lse: [num_parts, num_heads], log2 of the sum of the
    exponentials, -inf for a part that sees nothing. `parts_of` lists each query's parts. Returns [num_queries,
    num_heads, head_dim].
    """
    merged = []
    for parts in parts_of:
        lse = part_lse[list(parts)].double() * math.log(2)  # [num_parts, num_heads]
        if sinks is not None:
            lse = torch.cat((lse, sinks.double()[None]))
        weights = lse.softmax(dim=0)[: len(parts), :, None]
        merged.append((weights * part_outputs[list(parts)]).sum(dim=0))
    return torch.stack(merged).float()


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: PagedBatch,
    rules: ScoreRules,
    scales: KVScales | None = None,
) -> Tensor:
    """Causal attention of packed queries over block tables.

    query: [num_tokens, num_heads, head_dim]. Caches: [num_blocks, block_size, num_kv_heads, head_dim]; num_heads is a
    multiple of num_kv_heads. Returns [num_tokens, num_heads, head_dim] in the query's dtype.
    """
    num_heads, num_kv_heads = query.shape[1], key_cache.shape[2]
    if scales is not None:
        key_cache = key_cache.float() * scales.key.float().unsqueeze(-1)
        value_cache = value_cache.float() * scales.value.float().unsqueeze(-1)
    outputs = []
    start = 0
    for sequence in batch.sequences:
        q = query[start : start + sequence.num_new].float()  # [num_new, num_heads, head_dim]
        blocks = torch.tensor(sequence.block_ids, device=query.device)
        k = key_cache[blocks].flatten(0, 1)[: sequence.num_tokens].float()  # [num_tokens, num_kv_heads, head_dim]
        v = value_cache[blocks].flatten(0, 1)[: sequence.num_tokens].float()
        k = k.repeat_interleave(num_heads // num_kv_heads, dim=1)
        v = v.repeat_interleave(num_heads // num_kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * rules.scale
        if rules.softcap is not None:
            scores = torch.tanh(scores / rules.softcap) * rules.softcap
        positions = torch.arange(sequence.num_tokens, device=query.device)
        distances = positions[sequence.num_context :, None] - positions[None, :]  # [num_new, num_tokens]
        if rules.slopes is not None:
            scores = scores - rules.slopes.float()[:, None, None] * distances
        visible = distances >= 0
        if rules.window is not None:
            visible &= distances < rules.window
            v = v.nan_to_num()  # slots that slid out may hold anything
        scores = scores.masked_fill(~visible, float("-inf"))
        if rules.sinks is not None:
            sinks = rules.sinks.float()[:, None, None].expand(-1, sequence.num_new, 1)
            weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
        start += sequence.num_new
    return torch.cat(outputs).to(query.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x**2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""
    wide = x.float()
    return (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and that sum, which is rounded to their type before it is normalised."""
    summed = x + residual
    return rms_norm(summed, weight, eps), summed


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, where the last dimension is gate, then up."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up).to(gate_up.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with the pairs (i, i + head_dim / 2) turned by their angles (Su et al. 2021).

    x: [num_tokens, num_heads, head_dim]. cos, sin: [num_tokens, head_dim].
    """
    low, high = x.float().chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    return (x.float() * cos.float()[:, None] + turned * sin.float()[:, None]).to(x.dtype)


def rotate_and_store(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Rotate the queries in place; put rotated keys and values into their slots.

    qkv, mutated: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]. cos, sin: [num_tokens, head_dim]. Caches,
    mutated, slots and scales as in `store_kv`.
    """
    num_kv_heads = (qkv.shape[1] - num_heads) // 2
    query, key, value = qkv.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    query.copy_(rotate(query, cos, sin))
    store_kv(rotate(key, cos, sin), value, key_cache, value_cache, slot_mapping, scales)


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """Return the token of each draw, [num_draws], int64. logits: [num_rows, vocab_size]. The rule is that of `Draws`;
    among equal logits the lower id comes first."""
    tokens = []
    for index, row in enumerate(draws.rows.tolist()):
        kept, token_ids = logits[row].double().sort(descending=True, stable=True)
        top_k = int(draws.top_ks[index]) or len(kept)
        probabilities = ((kept[:top_k] - kept[0]) / draws.temperatures[index]).softmax(dim=0)
        before = probabilities.cumsum(dim=0) - probabilities
        is_left = (before < draws.top_ps[index]) & (probabilities >= draws.min_ps[index] * probabilities[0])
        is_left[0] = True
        cumulative = (probabilities * is_left).cumsum(dim=0)
        place = int((cumulative <= draws.uniforms[index] * cumulative[-1]).sum())
        tokens.append(int(token_ids[min(place, int(is_left.sum()) - 1)]))
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)
