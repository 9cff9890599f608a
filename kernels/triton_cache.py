"""Writing K and V into their slots on a GPU, in Triton. Not run on a GPU yet; see `kernels.triton_attention`."""

import triton
import triton.language as tl
from torch import Tensor

TILE_ELEMENTS = 1024  # elements of K, and as many of V, that a program writes
NUM_WARPS = 4


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V into their slots. Shapes as in `kernels.reference.store_kv`; each head's elements adjoin.

    Any strides do that the two caches share.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride(2) == value.stride(2) == key_cache.stride(3) == 1
    assert key_cache.stride() == value_cache.stride()
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
        NUM_ELEMENTS=num_elements,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=key_cache.shape[1],
        TILE_ELEMENTS=TILE_ELEMENTS,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )


@triton.jit  # type: ignore[untyped-decorator]
def store_token(  # type: ignore[no-untyped-def]
    key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    value_ptr,  # [num_tokens, num_kv_heads, head_dim]
    key_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    slots_ptr,  # [num_tokens], int64
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    NUM_ELEMENTS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Write one token's K and V, or TILE_ELEMENTS of each: program (token, tile). Offsets are 64-bit throughout."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    elements = tl.program_id(1) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    mask = elements < NUM_ELEMENTS
    head = (elements // HEAD_DIM).to(tl.int64)
    dim = elements % HEAD_DIM
    target = slot // BLOCK_SIZE * cache_block_stride + slot % BLOCK_SIZE * cache_slot_stride
    target += head * cache_head_stride + dim

    key = tl.load(key_ptr + token * key_token_stride + head * key_head_stride + dim, mask=mask)
    tl.store(key_cache_ptr + target, key, mask=mask)
    value = tl.load(value_ptr + token * value_token_stride + head * value_head_stride + dim, mask=mask)
    tl.store(value_cache_ptr + target, value, mask=mask)
