"""Paged attention on a GPU, in Triton: one launch for any mix of prefill chunks and decodes, and one to merge parts.

Blocks are read in place through the block tables under an online softmax (FlashAttention, Dao et al. 2022; blocks as in
PagedAttention, Kwon et al. 2023). Compiled for five targets by `scripts/check-kernels` and tested under Triton's
interpreter, but not run on a GPU: tile sizes follow from registers and shared memory, not from measured times.
"""

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_scales import GREATEST, MAX_GPU_HEAD_DIM, KVScales
from kernels.score_rules import ScoreRules
from kernels.triton_merge import merge_parts
from kernels.triton_plan import MIN_TILE, TritonPlan

MAX_HEAD_DIM = 256
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class TileShape:
    """How the attention kernel is compiled for a model's heads and a tile's rows."""

    padded_dim: int  # a power of two, at least head_dim
    num_keys: int  # keys of an iteration
    num_warps: int
    num_stages: int  # from 2 on, K and V are loaded ahead of their iteration; from 3 on, block ids ahead of those


def tile_shape_for(head_dim: int, tile_rows: int, dtype: torch.dtype, cache_dtype: torch.dtype) -> TileShape:
    """Return the largest tile that spills no register on any target, which `scripts/check-kernels` checks.

    float32 is multiplied exactly, outside the matrix units, in small tiles. Raises ValueError for too wide a head.
    """
    is_quantised = cache_dtype in GREATEST
    greatest_dim = MAX_GPU_HEAD_DIM if is_quantised else MAX_HEAD_DIM
    if head_dim > greatest_dim:
        raise ValueError(f"head_dim is {head_dim}; with a cache of {cache_dtype} it must be at most {greatest_dim}")
    padded_dim = max(MIN_TILE, triton.next_power_of_2(head_dim))
    if is_quantised:
        return _quantised_tile_shape_for(head_dim, padded_dim, tile_rows, dtype)
    if dtype.itemsize > 2:
        if head_dim == 128:
            # With 32 keys, ptxas stops at 48 registers a thread on sm_80 or, with Triton 3.6, on sm_90, and spills.
            return TileShape(padded_dim, num_keys=16, num_warps=8, num_stages=3)
        num_keys, num_warps = (16, 4) if padded_dim > 128 else (32, 8 if padded_dim >= 64 else 4)
        return TileShape(padded_dim, num_keys, num_warps, num_stages=2)
    size = padded_dim * tile_rows
    return TileShape(
        padded_dim,
        num_keys=64 if padded_dim <= 128 and size <= 4096 else 32 if size <= 8192 else 16,
        num_warps=8 if size > 8192 else 4,
        num_stages=2 if tile_rows > MIN_TILE else 3,
    )


def _quantised_tile_shape_for(head_dim: int, padded_dim: int, tile_rows: int, dtype: torch.dtype) -> TileShape:
    """Numbers are widened in registers, so tiles are smaller; and so for the masks of heads that are padded."""
    if dtype.itemsize > 2:
        num_keys, num_warps = 16 if padded_dim > 64 else 32, 8 if padded_dim >= 64 else 4
    elif tile_rows > MIN_TILE:
        num_keys, num_warps = (16, 8) if padded_dim > 64 else (64, 4)
    else:
        num_keys, num_warps = 64 if padded_dim <= 64 else 32 if head_dim == padded_dim else 16, 4
    # Loaded ahead, 64 keys and a tile of float16 with three queries a KV head spill on sm_89.
    spills = dtype is torch.float16 and tile_rows > MIN_TILE and padded_dim <= 64
    return TileShape(padded_dim, num_keys, num_warps, num_stages=1 if spills else 2)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: TritonPlan,
    rules: ScoreRules,
    scales: KVScales | None = None,
) -> Tensor:
    """Attend as the plan says, which was made for the same window. Shapes as in `kernels.reference.paged_attention`.

    Each head's elements adjoin; otherwise any strides do that the two caches share, so the layout of blocks is the
    owner's to choose. Slots that no sequence owns or has written, and those out of the window, may hold anything, NaN
    included. Raises ValueError for too wide a head.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    assert query.stride(2) == key_cache.stride(3) == 1
    assert key_cache.stride() == value_cache.stride()
    assert num_heads == num_kv_heads * plan.queries_per_kv_head
    assert (key_cache.shape[1], num_tokens, rules.window) == (plan.block_size, plan.num_tokens, plan.window)
    if scales is not None:
        assert scales.key.stride() == scales.value.stride()
    shape = tile_shape_for(head_dim, plan.tile_rows, query.dtype, key_cache.dtype)
    output = query.new_empty(num_tokens, num_heads, head_dim)
    parts: tuple[Tensor, Tensor] | None = None
    if plan.merges is not None:
        part_outputs = output.new_empty(plan.num_parts, num_heads, head_dim, dtype=torch.float32)
        parts = part_outputs, output.new_empty(plan.num_parts, num_heads, dtype=torch.float32)
    attend_tile[(len(plan.tiles), num_kv_heads)](
        output,
        *(parts or (None, None)),
        query,
        key_cache,
        value_cache,
        *((scales.key, scales.value) if scales is not None else (None, None)),
        rules.sinks,
        rules.slopes,
        plan.tiles,
        plan.query_tokens,
        plan.query_positions,
        plan.block_tables,
        rules.scale,
        num_tokens,
        plan.block_tables.stride(0),
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *(scales.key.stride() if scales is not None else (None, None, None)),
        NUM_HEADS=num_heads,
        QUERIES_PER_KV_HEAD=plan.queries_per_kv_head,
        HEAD_DIM=head_dim,
        PADDED_DIM=shape.padded_dim,
        BLOCK_SIZE=plan.block_size,
        TILE_ROWS=plan.tile_rows,
        TILE_KEYS=shape.num_keys,
        WINDOW=rules.window,
        SOFTCAP=rules.softcap,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    if plan.merges is not None and parts is not None:
        merge_parts(output, *parts, plan.merges, rules.sinks)
    return output


# What changes from step to step is not specialised: compiling anew for its values would gain nothing.
@triton.jit(do_not_specialize=["num_tokens", "table_stride"])  # type: ignore[untyped-decorator]
def attend_tile(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM]
    part_ptr,  # [num_parts, NUM_HEADS, HEAD_DIM], float32; None where the plan has no parts
    part_lse_ptr,  # [num_parts, NUM_HEADS], float32: log2 of the sum of the exponentials
    query_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM]
    key_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    value_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    key_scale_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads] or None
    value_scale_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads] or None
    sinks_ptr,  # [NUM_HEADS] or None
    slopes_ptr,  # [NUM_HEADS] or None
    tiles_ptr,  # [num_tiles, 5]
    tokens_ptr,  # [num_queries]
    positions_ptr,  # [num_queries]
    tables_ptr,  # [num_sequences, max_blocks]
    scale,
    num_tokens,
    table_stride,
    query_token_stride,
    query_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_block_stride,
    scale_slot_stride,
    scale_head_stride,
    NUM_HEADS: tl.constexpr,
    QUERIES_PER_KV_HEAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # or None
    SOFTCAP: tl.constexpr,  # or None
):
    """Attend with one tile, for one KV head. Grid: [num_tiles, num_kv_heads].

    Exponentials are powers of two, of scores times log2(e). Offsets are 64-bit wherever a cache or a batch can exceed
    2^31 elements.
    """
    log2_e: tl.constexpr = 1.4426950408889634
    tile_ptr = tiles_ptr + tl.program_id(0) * 5
    kv_head = tl.program_id(1)
    table_ptr = tables_ptr + tl.load(tile_ptr).to(tl.int64) * table_stride
    first_row = tl.load(tile_ptr + 1)
    num_rows = tl.load(tile_ptr + 2)
    first_key = tl.load(tile_ptr + 3)
    stop_key = tl.load(tile_ptr + 4)

    dims = tl.arange(0, PADDED_DIM)
    rows = tl.arange(0, TILE_ROWS)
    is_row = rows < num_rows
    queries = (first_row + rows) // QUERIES_PER_KV_HEAD
    heads = kv_head * QUERIES_PER_KV_HEAD + (first_row + rows) % QUERIES_PER_KV_HEAD
    positions = tl.load(positions_ptr + queries, mask=is_row, other=0)
    row_mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    tokens = tl.load(tokens_ptr + queries, mask=is_row, other=0)  # widened where they are used, to keep registers free
    if WINDOW is not None:  # the last key that no row sees any more: a tile's first key may be one before it
        # Positions of a tile's rows ascend, but where sequences share its keys: there a window hides nothing.
        last_hidden = tl.load(positions_ptr + first_row // QUERIES_PER_KV_HEAD) - WINDOW
    query_offsets = tokens.to(tl.int64) * query_token_stride + heads.to(tl.int64) * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=row_mask, other=0.0)
    if slopes_ptr is not None:
        slopes = tl.load(slopes_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * log2_e

    row_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([TILE_ROWS], tl.float32)
    total = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    key_ptr += kv_head.to(tl.int64) * cache_head_stride
    value_ptr += kv_head.to(tl.int64) * cache_head_stride
    if key_scale_ptr is not None:
        key_scale_ptr += kv_head.to(tl.int64) * scale_head_stride
        value_scale_ptr += kv_head.to(tl.int64) * scale_head_stride
    for start in range(first_key, stop_key, TILE_KEYS):
        keys_at = start + tl.arange(0, TILE_KEYS)
        stored = keys_at < stop_key  # nothing beyond is read: 0 * NaN would spread
        if WINDOW is not None:
            stored &= keys_at > last_hidden
        blocks = tl.load(table_ptr + keys_at // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        offsets = blocks * cache_block_stride + keys_at % BLOCK_SIZE * cache_slot_stride
        key_mask = (dims < HEAD_DIM)[:, None] & stored[None, :]
        keys = tl.load(key_ptr + offsets[None, :] + dims[:, None], mask=key_mask, other=0.0)
        scores = tl.dot(query, keys.to(query.dtype), input_precision="ieee")
        if key_scale_ptr is not None:
            scale_offsets = blocks * scale_block_stride + keys_at % BLOCK_SIZE * scale_slot_stride
            scores *= tl.load(key_scale_ptr + scale_offsets, mask=stored, other=0.0).to(tl.float32)[None, :]
            value_scales = tl.load(value_scale_ptr + scale_offsets, mask=stored, other=0.0).to(tl.float32)
        if SOFTCAP is not None:  # tanh(x) = 1 - 2 / (1 + e^(2x))
            exponentials = tl.exp2(scores * (scale * (2.0 * log2_e / SOFTCAP)))
            scores = (SOFTCAP * log2_e) * (1.0 - 2.0 / (1.0 + exponentials))
        else:
            scores *= scale * log2_e
        distances = positions[:, None] - keys_at[None, :]
        if slopes_ptr is not None:
            scores -= slopes[:, None] * distances.to(tl.float32)
        visible = (distances >= 0) & stored[None, :]
        if WINDOW is not None:
            visible &= distances < WINDOW
        scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        reference = tl.where(new_max == float("-inf"), 0.0, new_max)  # of a row that has seen nothing yet
        weights = tl.exp2(scores - reference[:, None])
        correction = tl.exp2(row_max - reference)
        row_sum = row_sum * correction + tl.sum(weights, 1)
        row_max = new_max

        value_mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
        values = tl.load(value_ptr + offsets[:, None] + dims[None, :], mask=value_mask, other=0.0)
        if value_scale_ptr is not None:
            weights *= value_scales[None, :]
        values = values.to(query.dtype)
        total = tl.dot(weights.to(query.dtype), values, total * correction[:, None], input_precision="ieee")

    if part_ptr is not None:
        is_part = is_row & (queries >= num_tokens)
        divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
        lse = tl.where(row_sum == 0.0, float("-inf"), row_max + tl.log2(divisor))
        part_rows = (queries - num_tokens).to(tl.int64) * NUM_HEADS + heads
        tl.store(part_lse_ptr + part_rows, lse, mask=is_part)
        part_offsets = part_rows[:, None] * HEAD_DIM + dims[None, :]
        tl.store(part_ptr + part_offsets, total / divisor[:, None], mask=row_mask & is_part[:, None])
        row_mask &= (queries < num_tokens)[:, None]
    if sinks_ptr is not None:
        sinks = tl.load(sinks_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * log2_e
        new_max = tl.maximum(row_max, sinks)
        correction = tl.exp2(row_max - new_max)
        row_sum = row_sum * correction + tl.exp2(sinks - new_max)
        total *= correction[:, None]
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)  # of an empty row, which is not stored
    output_offsets = (tokens.to(tl.int64) * NUM_HEADS + heads)[:, None] * HEAD_DIM + dims[None, :]
    result = (total / divisor[:, None]).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + output_offsets, result, mask=row_mask)
