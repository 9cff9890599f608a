"""Paged attention on a GPU, in Triton: one launch for any mix of prefill chunks and decodes.

Blocks are read in place through the block tables under an online softmax (FlashAttention, Dao et al. 2022; blocks as in
PagedAttention, Kwon et al. 2023). Compiled for five targets by `scripts/check-kernels` and tested under Triton's
interpreter; it was not run on a GPU, so its tile shapes are estimates, not measurements.
"""

import math
from array import array
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.paged_batch import PagedBatch

MAX_HEAD_DIM = 256
MAX_QUERIES_PER_KV_HEAD = 128
MIN_TILE_ROWS = 16  # the least that a matrix instruction takes
CHUNK_TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """How one step's attention is split into tiles of query rows; built once, used by every layer.

    A tile is a run of query tokens of one sequence. With the query heads of one KV head its tokens become the rows of one
    matrix, so each K and V is read once for all of those heads.
    """

    tiles: Tensor  # [num_tiles, 4], int32: sequence, first packed query token, its position, number of query tokens
    block_tables: Tensor  # [num_sequences, max_blocks], int32, padded with 0
    block_size: int
    queries_per_kv_head: int
    tile_rows: int  # at least tokens of a tile * queries_per_kv_head


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel is compiled with: its constants, then Triton's own options."""

    constants: dict[str, int]
    num_warps: int
    num_stages: int  # iterations whose K and V are loaded ahead, the current one included


def plan_attention(batch: PagedBatch, queries_per_kv_head: int, device: torch.device) -> TritonPlan:
    """Split a step of at least one sequence into tiles, in one transfer to the device.

    Raises ValueError for more query heads a KV head than a tile has rows.
    """
    tile_rows = tile_rows_for(max(sequence.num_new for sequence in batch.sequences), queries_per_kv_head)
    tile_tokens = tile_rows // queries_per_kv_head
    packed = array("i")
    start = 0
    for index, sequence in enumerate(batch.sequences):
        for first in range(0, sequence.num_new, tile_tokens):
            num_queries = min(tile_tokens, sequence.num_new - first)
            packed.extend((index, start + first, sequence.num_context + first, num_queries))
        start += sequence.num_new
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
    return TritonPlan(
        tiles=values[:num_tile_values].view(-1, 4),
        block_tables=values[num_tile_values:].view(-1, width),
        block_size=batch.block_size,
        queries_per_kv_head=queries_per_kv_head,
        tile_rows=tile_rows,
    )


def tile_rows_for(max_new: int, queries_per_kv_head: int) -> int:
    """Return the rows of a step's tiles, a power of two, given its longest run of query tokens.

    Few distinct values, since each is compiled apart. A decode beside a chunk leaves rows of its tile empty: it waits for
    memory, not for arithmetic.
    """
    if queries_per_kv_head > MAX_QUERIES_PER_KV_HEAD:
        raise ValueError(f"queries_per_kv_head is {queries_per_kv_head}; it must be at most {MAX_QUERIES_PER_KV_HEAD}")
    if max_new * queries_per_kv_head <= MIN_TILE_ROWS:
        return MIN_TILE_ROWS
    return max(CHUNK_TILE_ROWS, triton.next_power_of_2(queries_per_kv_head))


def launch_for(
    *, head_dim: int, block_size: int, queries_per_kv_head: int, tile_rows: int, dtype: torch.dtype
) -> Launch:
    """Return how the attention kernel is compiled for a model and a tile. Raises ValueError for too wide a head.

    Tiles are sized so that no target spills registers or runs out of shared memory, which `scripts/check-kernels` checks.
    """
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}; it must be at most {MAX_HEAD_DIM}")
    padded_dim = max(16, triton.next_power_of_2(head_dim))
    tile_keys = 64 if padded_dim * dtype.itemsize <= 256 else 32
    return Launch(
        constants={
            "QUERIES_PER_KV_HEAD": queries_per_kv_head,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_dim,
            "BLOCK_SIZE": block_size,
            "TILE_ROWS": tile_rows,
            "TILE_KEYS": tile_keys,
        },
        num_warps=8 if tile_rows * padded_dim > 64 * 128 else 4,
        num_stages=2,
    )


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: TritonPlan, scale: float) -> Tensor:
    """Attend as the plan says. Shapes as in `kernels.reference.paged_attention`; each head's elements adjoin.

    Raises ValueError for a head that is too wide. Slots that no sequence owns or has written may hold anything, NaN
    included.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    assert query.stride(2) == key_cache.stride(3) == value_cache.stride(3) == 1
    assert num_heads == num_kv_heads * plan.queries_per_kv_head
    assert key_cache.shape[1] == plan.block_size
    launch = launch_for(
        head_dim=head_dim,
        block_size=plan.block_size,
        queries_per_kv_head=plan.queries_per_kv_head,
        tile_rows=plan.tile_rows,
        dtype=query.dtype,
    )
    output = query.new_empty(num_tokens, num_heads, head_dim)
    attend_tile[(len(plan.tiles), num_kv_heads)](
        output,
        query,
        key_cache,
        value_cache,
        plan.tiles,
        plan.block_tables,
        scale * math.log2(math.e),  # the kernel's exponentials are powers of two
        plan.block_tables.stride(0),
        *output.stride()[:2],
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        **launch.constants,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return output


@triton.jit(do_not_specialize=["table_stride"])  # it varies from step to step; compiling anew for its value gains nothing
def attend_tile(
    output_ptr,  # [num_tokens, num_heads, head_dim]
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    tiles_ptr,  # [num_tiles, 4]
    tables_ptr,  # [num_sequences, max_blocks]
    scale_log2,
    table_stride,
    output_token_stride,
    output_head_stride,
    query_token_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    QUERIES_PER_KV_HEAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
):
    """Attend with one tile of one sequence, for one KV head: program (tile, KV head).

    Offsets are 64-bit wherever a cache or a batch can exceed 2^31 elements.
    """
    tile_ptr = tiles_ptr + tl.program_id(0) * 4
    kv_head = tl.program_id(1).to(tl.int64)
    table_ptr = tables_ptr + tl.load(tile_ptr).to(tl.int64) * table_stride
    first_token = tl.load(tile_ptr + 1)
    first_position = tl.load(tile_ptr + 2)
    num_queries = tl.load(tile_ptr + 3)
    num_keys = first_position + num_queries  # the tile's last query sees all of them

    dims = tl.arange(0, PADDED_DIM)
    rows = tl.arange(0, TILE_ROWS)
    row_query = rows // QUERIES_PER_KV_HEAD
    row_token = (first_token + row_query).to(tl.int64)
    row_head = kv_head * QUERIES_PER_KV_HEAD + rows % QUERIES_PER_KV_HEAD
    row_position = first_position + row_query
    row_mask = (row_query < num_queries)[:, None] & (dims < HEAD_DIM)[None, :]
    query_offsets = row_token * query_token_stride + row_head * query_head_stride
    query = tl.load(query_ptr + query_offsets[:, None] + dims[None, :], mask=row_mask, other=0.0)

    # Every row, an empty one too, sees position 0, so its maximum is finite from the first iteration on.
    row_max = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([TILE_ROWS], tl.float32)
    total = tl.zeros([TILE_ROWS, PADDED_DIM], tl.float32)
    key_ptr += kv_head * key_head_stride
    value_ptr += kv_head * value_head_stride
    for start in range(0, num_keys, TILE_KEYS):
        positions = start + tl.arange(0, TILE_KEYS)
        stored = positions < num_keys  # nothing else is read: 0 * NaN would spread
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        slots = positions % BLOCK_SIZE
        key_offsets = blocks * key_block_stride + slots * key_slot_stride
        key_mask = (dims < HEAD_DIM)[:, None] & stored[None, :]
        key = tl.load(key_ptr + key_offsets[None, :] + dims[:, None], mask=key_mask, other=0.0)
        scores = tl.dot(query, key, input_precision="ieee") * scale_log2
        scores = tl.where(positions[None, :] <= row_position[:, None], scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        correction = tl.exp2(row_max - new_max)
        row_max = new_max
        row_sum = row_sum * correction + tl.sum(weights, 1)

        value_offsets = blocks * value_block_stride + slots * value_slot_stride
        value_mask = stored[:, None] & (dims < HEAD_DIM)[None, :]
        value = tl.load(value_ptr + value_offsets[:, None] + dims[None, :], mask=value_mask, other=0.0)
        total = tl.dot(weights.to(value.dtype), value, total * correction[:, None], input_precision="ieee")

    output_offsets = row_token * output_token_stride + row_head * output_head_stride
    result = (total / row_sum[:, None]).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + output_offsets[:, None] + dims[None, :], result, mask=row_mask)
