"""Rotary embedding of queries and keys with the store to the KV cache on a GPU, in Triton: one launch a layer.

Not run on a GPU yet; see `kernels.triton_attention`.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_scales import GREATEST, KVScales
from kernels.triton_cache import quantise, scale_for

NUM_WARPS = 1  # of a program, which has one head


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
    """Rotate the queries in place; put rotated keys and values into their slots, quantised where there are scales.

    Shapes as in `kernels.reference.rotate_and_store`. qkv is contiguous; each row of cos and of sin is, and so is each
    head in the caches. Otherwise any strides do that cos and sin, the two caches and the two scales share.
    """
    num_tokens, num_all, head_dim = qkv.shape
    assert qkv.is_contiguous()
    assert cos.stride() == sin.stride()
    assert key_cache.stride() == value_cache.stride()
    assert cos.stride(1) == key_cache.stride(3) == 1
    assert head_dim % 2 == 0
    if scales is not None:
        assert scales.key.stride() == scales.value.stride()
    rotate_head[(num_tokens, num_all)](
        qkv,
        cos,
        sin,
        key_cache,
        value_cache,
        *((scales.key, scales.value) if scales is not None else (None, None)),
        slot_mapping,
        cos.stride(0),
        *key_cache.stride()[:3],
        *(scales.key.stride() if scales is not None else (None, None, None)),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=(num_all - num_heads) // 2,
        HALF_DIM=head_dim // 2,
        PADDED_HALF=triton.next_power_of_2(head_dim // 2),
        BLOCK_SIZE=key_cache.shape[1],
        GREATEST=GREATEST.get(key_cache.dtype),
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )


@triton.jit  # type: ignore[untyped-decorator]
def rotate_head(  # type: ignore[no-untyped-def]
    qkv_ptr,  # [num_tokens, NUM_HEADS + 2 * NUM_KV_HEADS, 2 * HALF_DIM]
    cos_ptr,  # [num_tokens, 2 * HALF_DIM]
    sin_ptr,  # [num_tokens, 2 * HALF_DIM]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, NUM_KV_HEADS, 2 * HALF_DIM]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, NUM_KV_HEADS, 2 * HALF_DIM]
    key_scale_ptr,  # [num_blocks, BLOCK_SIZE, NUM_KV_HEADS] or None
    value_scale_ptr,  # [num_blocks, BLOCK_SIZE, NUM_KV_HEADS] or None
    slots_ptr,  # [num_tokens], int64
    angle_token_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_block_stride,
    scale_slot_stride,
    scale_head_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GREATEST: tl.constexpr,  # or None
):
    """Do one head of one token: a query's in place, a key's or a value's into its slot.

    Grid: [num_tokens, NUM_HEADS + 2 * NUM_KV_HEADS]. Offsets are 64-bit throughout.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dims = tl.arange(0, PADDED_HALF)
    mask = dims < HALF_DIM
    head_ptr = qkv_ptr + (token * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * (2 * HALF_DIM) + dims
    low = tl.load(head_ptr, mask=mask, other=0.0)
    high = tl.load(head_ptr + HALF_DIM, mask=mask, other=0.0)
    if head < NUM_HEADS + NUM_KV_HEADS:
        low, high = _rotate(low, high, cos_ptr, sin_ptr, token * angle_token_stride + dims, mask, HALF_DIM)
    if head < NUM_HEADS:
        tl.store(head_ptr, low, mask=mask)
        tl.store(head_ptr + HALF_DIM, high, mask=mask)
    else:
        slot = tl.load(slots_ptr + token)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        is_key = head < NUM_HEADS + NUM_KV_HEADS
        kv_head = ((head - NUM_HEADS) % NUM_KV_HEADS).to(tl.int64)
        target = block * cache_block_stride + offset * cache_slot_stride + kv_head * cache_head_stride
        target_ptr = tl.where(is_key, key_cache_ptr, value_cache_ptr) + target + dims
        if key_scale_ptr is not None:
            scale_target = block * scale_block_stride + offset * scale_slot_stride + kv_head * scale_head_stride
            scale_ptr = tl.where(is_key, key_scale_ptr, value_scale_ptr) + scale_target
            _store_quantised(low, high, target_ptr, scale_ptr, mask, HALF_DIM, GREATEST)
        else:
            tl.store(target_ptr, low, mask=mask)
            tl.store(target_ptr + HALF_DIM, high, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _store_quantised(  # type: ignore[no-untyped-def]
    low, high, numbers_ptr, scale_ptr, mask, HALF_DIM: tl.constexpr, GREATEST: tl.constexpr
):
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    greatest = tl.maximum(tl.max(tl.abs(wide_low), 0), tl.max(tl.abs(wide_high), 0))
    scale = scale_for(greatest, GREATEST, scale_ptr.dtype.element_ty)
    tl.store(scale_ptr, scale)
    tl.store(numbers_ptr, quantise(wide_low, scale, GREATEST, numbers_ptr.dtype.element_ty), mask=mask)
    tl.store(numbers_ptr + HALF_DIM, quantise(wide_high, scale, GREATEST, numbers_ptr.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(low, high, cos_ptr, sin_ptr, offsets, mask, HALF_DIM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a head's halves, turned, rounded to their type as if they had been stored."""
    cos_low = tl.load(cos_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_ptr + offsets + HALF_DIM, mask=mask, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_ptr + offsets + HALF_DIM, mask=mask, other=0.0).to(tl.float32)
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    turned_low = wide_low * cos_low - wide_high * sin_low
    turned_high = wide_high * cos_high + wide_low * sin_high
    return turned_low.to(low.dtype), turned_high.to(high.dtype)
