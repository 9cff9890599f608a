"""Writing K and V into their slots on a GPU, in Triton. Not run on a GPU yet; see `kernels.triton_attention`."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.kv_scales import GREATEST, KVScales

TILE_ELEMENTS = 1024  # elements of K, and as many of V, that a program writes
NUM_WARPS = 4
QUANTISE_NUM_WARPS = 1  # of a program that writes one head


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


def store_quantised_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, scales: KVScales
) -> None:
    """Write K and V and their scales into their slots, as `kernels.reference.store_kv`; each head's elements adjoin.

    Any strides do that K and V share, in the caches and in the scales.
    """
    num_tokens, num_kv_heads, head_dim = key.shape
    assert key.stride(2) == value.stride(2) == key_cache.stride(3) == 1
    assert (key_cache.stride(), scales.key.stride()) == (value_cache.stride(), scales.value.stride())
    quantise_head[(num_tokens, num_kv_heads)](
        key,
        value,
        key_cache,
        value_cache,
        scales.key,
        scales.value,
        slot_mapping,
        *key.stride()[:2],
        *value.stride()[:2],
        *key_cache.stride()[:3],
        *scales.key.stride(),
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        BLOCK_SIZE=key_cache.shape[1],
        GREATEST=GREATEST[key_cache.dtype],
        num_warps=QUANTISE_NUM_WARPS,
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


@triton.jit  # type: ignore[untyped-decorator]
def quantise_head(  # type: ignore[no-untyped-def]
    key_ptr,  # [num_tokens, num_kv_heads, HEAD_DIM]
    value_ptr,  # [num_tokens, num_kv_heads, HEAD_DIM]
    key_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    value_cache_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads, HEAD_DIM]
    key_scale_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads]
    value_scale_ptr,  # [num_blocks, BLOCK_SIZE, num_kv_heads]
    slots_ptr,  # [num_tokens], int64
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    cache_block_stride,
    cache_slot_stride,
    cache_head_stride,
    scale_block_stride,
    scale_slot_stride,
    scale_head_stride,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GREATEST: tl.constexpr,
):
    """Quantise one head of one token's K and V. Grid: [num_tokens, num_kv_heads]. Offsets are 64-bit throughout."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    target = block * cache_block_stride + offset * cache_slot_stride + head * cache_head_stride
    scale_target = block * scale_block_stride + offset * scale_slot_stride + head * scale_head_stride
    key_ptr += token * key_token_stride + head * key_head_stride
    value_ptr += token * value_token_stride + head * value_head_stride
    _quantise_row(key_ptr, key_cache_ptr + target, key_scale_ptr + scale_target, HEAD_DIM, PADDED_DIM, GREATEST)
    _quantise_row(value_ptr, value_cache_ptr + target, value_scale_ptr + scale_target, HEAD_DIM, PADDED_DIM, GREATEST)


@triton.jit  # type: ignore[untyped-decorator]
def _quantise_row(  # type: ignore[no-untyped-def]
    row_ptr, numbers_ptr, scale_ptr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, GREATEST: tl.constexpr
):
    dims = tl.arange(0, PADDED_DIM)
    row = tl.load(row_ptr + dims, mask=dims < HEAD_DIM, other=0.0).to(tl.float32)
    scale = scale_for(tl.max(tl.abs(row), 0), GREATEST, scale_ptr.dtype.element_ty)
    tl.store(scale_ptr, scale)
    numbers = quantise(row, scale, GREATEST, numbers_ptr.dtype.element_ty)
    tl.store(numbers_ptr + dims, numbers, mask=dims < HEAD_DIM)


@triton.jit  # type: ignore[untyped-decorator]
def scale_for(greatest, GREATEST: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the scale, of type `dtype`, of float32 values of which `greatest` is the greatest magnitude."""
    return tl.div_rn(greatest, GREATEST * 1.0).to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def quantise(values, scale, GREATEST: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return float32 values as numbers of type `dtype`, int8 or fp8."""
    divisor = tl.where(scale == 0.0, 1.0, scale.to(tl.float32))
    numbers = tl.clamp(tl.div_rn(values, divisor), -GREATEST, GREATEST)
    if dtype == tl.int8:
        numbers = (numbers + 12582912.0) - 12582912.0  # 1.5 * 2^23: to the nearest integer, ties to even
    return numbers.to(dtype)
