"""Paged attention on a GPU, in Triton: one launch for any mix of prefill chunks and decodes.

Blocks are read in place through the block tables under an online softmax (FlashAttention, Dao et al. 2022; blocks as in
PagedAttention, Kwon et al. 2023). Compiled for five targets by `scripts/check-kernels` and tested under Triton's
interpreter, but not run on a GPU: tile sizes follow from registers and shared memory, not from measured times.
"""

import math
from array import array
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules

MAX_HEAD_DIM = 256
MIN_TILE = 16  # the least that a matrix instruction takes of rows, of keys and of a head's elements
CHUNK_TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """How one step's attention is split into tiles of query rows; built once, used by every layer.

    The query heads of one KV head are rows of one matrix, token by token (row = token * queries_per_kv_head + head), so
    each K and V is read once for all of them. A tile is a run of one sequence's rows: [sequence, first row, number of
    rows, what to add to the packed index of a token for its position].
    """

    tiles: Tensor  # [num_tiles, 4], int32
    block_tables: Tensor  # [num_sequences, max_blocks], int32, padded with 0
    block_size: int
    queries_per_kv_head: int
    tile_rows: int


@dataclass(frozen=True, slots=True)
class TileShape:
    """How the attention kernel is compiled for a model's heads and a tile's rows."""

    padded_dim: int  # a power of two, at least head_dim
    num_keys: int  # keys of an iteration
    num_warps: int
    num_stages: int  # from 2 on, K and V are loaded ahead of their iteration; from 3 on, block ids ahead of those


def plan_attention(batch: PagedBatch, queries_per_kv_head: int, dtype: torch.dtype, device: torch.device) -> TritonPlan:
    """Split a step of at least one sequence into tiles, and bring them to the device in one transfer.

    `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's.
    """
    tile_rows = tile_rows_for(max(sequence.num_new for sequence in batch.sequences) * queries_per_kv_head, dtype)
    packed = array("i")
    start = 0
    for index, sequence in enumerate(batch.sequences):
        stop = start + sequence.num_new
        stop_row = stop * queries_per_kv_head
        for row in range(start * queries_per_kv_head, stop_row, tile_rows):
            packed.extend((index, row, min(tile_rows, stop_row - row), sequence.num_context - start))
        start = stop
    num_tile_values = len(packed)
    lengths = [-(-sequence.num_tokens // batch.block_size) for sequence in batch.sequences]
    width = max(lengths)
    for sequence, length in zip(batch.sequences, lengths, strict=True):
        packed.extend(sequence.block_ids[:length])
        packed.extend(array("i", [0]) * (width - length))
    host = torch.frombuffer(packed, dtype=torch.int32)
    if device.type == "cuda":
        host = host.pin_memory()  # so that the transfer does not wait for the work queued before it
    values = host.to(device, non_blocking=True)
    return TritonPlan(  # a tile's 16 bytes keep the tables aligned as Triton likes, whatever the number of tiles
        tiles=values[:num_tile_values].view(-1, 4),
        block_tables=values[num_tile_values:].view(-1, width),
        block_size=batch.block_size,
        queries_per_kv_head=queries_per_kv_head,
        tile_rows=tile_rows,
    )


def tile_rows_for(max_rows: int, dtype: torch.dtype) -> int:
    """Return the rows of a step's tiles; `max_rows` is the most that one sequence has.

    Few distinct values, since each is compiled apart. A decode beside a chunk leaves most rows of its tile empty: it
    waits for memory, not for arithmetic.
    """
    return MIN_TILE if max_rows <= MIN_TILE or dtype.itemsize > 2 else CHUNK_TILE_ROWS


def tile_shape_for(head_dim: int, tile_rows: int, dtype: torch.dtype) -> TileShape:
    """Return the largest tile that spills no register on any target, which `scripts/check-kernels` checks.

    float32 is multiplied exactly, outside the matrix units, in small tiles. Raises ValueError for too wide a head.
    """
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}; it must be at most {MAX_HEAD_DIM}")
    padded_dim = max(MIN_TILE, triton.next_power_of_2(head_dim))
    if dtype.itemsize > 2:
        num_keys, num_warps = (16, 4) if padded_dim > 128 else (32, 8 if padded_dim > 64 else 4)
        return TileShape(padded_dim, num_keys, num_warps, num_stages=2)
    return TileShape(
        padded_dim,
        num_keys=64 if padded_dim <= 128 and padded_dim * tile_rows <= 4096 else 32,
        num_warps=8 if padded_dim * tile_rows > 8192 else 4,
        num_stages=2 if tile_rows > MIN_TILE else 3,
    )


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: TritonPlan, rules: ScoreRules
) -> Tensor:
    """Attend as the plan says. Shapes as in `kernels.reference.paged_attention`; each head's elements adjoin.

    Any strides do that the two caches share, so the layout of blocks is the owner's to choose.
    Slots that no sequence owns or has written may hold anything, NaN included. Raises ValueError for too wide a head,
    NotImplementedError for rules beyond the scale.
    """
    if (rules.window, rules.softcap, rules.sinks) != (None, None, None):
        raise NotImplementedError("the Triton kernel has neither windows nor softcap nor sinks yet")
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    assert query.stride(2) == key_cache.stride(3) == 1
    assert key_cache.stride() == value_cache.stride()
    assert num_heads == num_kv_heads * plan.queries_per_kv_head
    assert key_cache.shape[1] == plan.block_size
    shape = tile_shape_for(head_dim, plan.tile_rows, query.dtype)
    output = query.new_empty(num_tokens, num_heads, head_dim)
    attend_tile[(len(plan.tiles), num_kv_heads)](
        output,
        query,
        key_cache,
        value_cache,
        plan.tiles,
        plan.block_tables,
        rules.scale * math.log2(math.e),
        plan.block_tables.stride(0),
        *output.stride()[:2],
        *query.stride()[:2],
        *key_cache.stride()[:3],
        QUERIES_PER_KV_HEAD=plan.queries_per_kv_head,
        HEAD_DIM=head_dim,
        PADDED_DIM=shape.padded_dim,
        BLOCK_SIZE=plan.block_size,
        TILE_ROWS=plan.tile_rows,
        TILE_KEYS=shape.num_keys,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
        enable_fp_fusion=True,
    )
    return output


# The table's stride changes from step to step, and compiling anew for its value would gain nothing.
@triton.jit(do_not_specialize=["table_stride"])  # type: ignore[untyped-decorator]
def attend_tile(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, num_heads, head_dim]
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    tiles_ptr,  # [num_tiles, 4]
    tables_ptr,  # [num_sequences, max_blocks]
    scale_log2,  # scale * log2(e), since the exponentials below are powers of two
    table_stride,
    output_token_stride,
    output_head_stride,
    query_token_stride,
    query_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    QUERIES_PER_KV_HEAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Attend with one tile, for one KV head. Grid: [num_tiles, num_kv_heads].

    Offsets are 64-bit wherever a cache or a batch can exceed 2^31 elements.
    """
    tile_ptr = tiles_ptr + tl.program_id(0) * 4
    kv_head = tl.program_id(1).to(tl.int64)
    table_ptr = tables_ptr + tl.load(tile_ptr).to(tl.int64) * table_stride
    first_row = tl.load(tile_ptr + 1)
    num_rows = tl.load(tile_ptr + 2)
    position_offset = tl.load(tile_ptr + 3)
    num_keys = (first_row + num_rows - 1) // QUERIES_PER_KV_HEAD + position_offset + 1  # what its last row sees

    dims = tl.arange(0, PADDED_DIM)
    rows = tl.arange(0, TILE_ROWS)
    tokens = (first_row + rows) // QUERIES_PER_KV_HEAD
    heads = kv_head * QUERIES_PER_KV_HEAD + (first_row + rows) % QUERIES_PER_KV_HEAD
    row_positions = tokens + position_offset
    row_mask = (rows < num_rows)[:, None] & (dims < HEAD_DIM)[None, :]
    query_offsets = tokens.to(tl.int64) * query_token_stride + heads * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=row_mask, other=0.0)

    # Every row, an empty one too, sees position 0, so its maximum is a number from the first iteration on.
    row_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([TILE_ROWS], tl.float32)
    total = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    key_ptr += kv_head * cache_head_stride
    value_ptr += kv_head * cache_head_stride
    for start in range(0, num_keys, TILE_KEYS):
        positions = start + tl.arange(0, TILE_KEYS)
        stored = positions < num_keys  # nothing beyond is read: 0 * NaN would spread
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        offsets = blocks * cache_block_stride + positions % BLOCK_SIZE * cache_slot_stride
        key_mask = (dims < HEAD_DIM)[:, None] & stored[None, :]
        keys = tl.load(key_ptr + offsets[None, :] + dims[:, None], mask=key_mask, other=0.0)
        scores = tl.dot(query, keys, input_precision="ieee") * scale_log2
        scores = tl.where(positions[None, :] <= row_positions[:, None], scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        correction = tl.exp2(row_max - new_max)
        row_sum = row_sum * correction + tl.sum(weights, 1)
        row_max = new_max

        value_mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
        values = tl.load(value_ptr + offsets[:, None] + dims[None, :], mask=value_mask, other=0.0)
        total = tl.dot(weights.to(values.dtype), values, total * correction[:, None], input_precision="ieee")

    output_offsets = tokens.to(tl.int64) * output_token_stride + heads * output_head_stride
    result = (total / row_sum[:, None]).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + output_offsets[:, None] + dims[None, :], result, mask=row_mask)
