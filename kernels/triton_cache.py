"""Writing K and V into their slots on a GPU, in Triton. Not run on a GPU yet; see `kernels.triton_attention`."""

import triton
import triton.language as tl
from torch import Tensor

TILE_ELEMENTS = 1024  # elements of K, and as many of V, that a program writes
NUM_WARPS = 4


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V into their slots, in one launch. Shapes as in `kernels.reference.store_kv`; each head's elements adjoin."""
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride(2) == value.stride(2) == key_cache.stride(3) == value_cache.stride(3) == 1
    num_elements = num_kv_heads * head_dim
    store_token[(num_tokens, triton.cdiv(num_elements, TILE_ELEMENTS))](
        key,
        value,
        key_cache,
        value_cache,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        NUM_ELEMENTS=num_elements,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        TILE_ELEMENTS=TILE_ELEMENTS,
        num_warps=NUM_WARPS,
    )


@triton.jit
def store_token(
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    value_ptr,  # [num_tokens, num_kv_heads, head_dim]
    key_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    slots_ptr,  # [num_tokens], int64
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    key_cache_block_stride,
    key_cache_slot_stride,
    key_cache_head_stride,
    value_cache_block_stride,
    value_cache_slot_stride,
    value_cache_head_stride,
    NUM_ELEMENTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Write one token's K and V, or TILE_ELEMENTS of each: program (token, tile). Offsets are 64-bit throughout."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    elements = tl.program_id(1) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    mask = elements < NUM_ELEMENTS
    head = (elements // HEAD_DIM).to(tl.int64)
    dim = elements % HEAD_DIM

    key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + dim, mask=mask)
    key_target = block * key_cache_block_stride + offset * key_cache_slot_stride + head * key_cache_head_stride + dim
    tl.store(key_cache_ptr + key_target, key, mask=mask)
    value = tl.load(value_ptr + token * value_token_stride + head * value_head_stride + dim, mask=mask)
    value_target = (
        block * value_cache_block_stride + offset * value_cache_slot_stride + head * value_cache_head_stride + dim
    )
    tl.store(value_cache_ptr + value_target, value, mask=mask)
