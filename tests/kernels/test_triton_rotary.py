"""Triton's rotary embedding with the store to the cache, against its oracle."""

import pytest
import torch
from torch import Tensor

from kernels import reference, triton_rotary
from kernels.kv_scales import KVScales
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
ON_GPU = DEVICE.type == "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Fused multiplications round once less on a GPU; the interpreter cuts bfloat16 off where it should round.
TOLERANCE = {torch.float32: 2e-6 if ON_GPU else 0, torch.float16: 2e-3 if ON_GPU else 0, torch.bfloat16: 2**-7}
# The interpreter rounds to fp8 wrongly (124.75 to 64).
QUANTISED = [torch.int8, torch.float8_e4m3fn] if ON_GPU else [torch.int8]
SHAPES = [(1, 1, 1, 32, 8), (7, 9, 3, 64, 16), (5, 4, 2, 80, 16), (3, 4, 4, 256, 128), (4, 2, 1, 6, 5)]
NUM_BLOCKS = 4


def inputs(num_tokens: int, num_all: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return qkv, cos and sin; the halves of cos and of sin differ, which a model's do not."""
    torch.manual_seed(num_tokens)
    qkv = torch.randn(num_tokens, num_all, head_dim, device=DEVICE).to(dtype)
    cos, sin = torch.randn(2, num_tokens, head_dim, device=DEVICE).to(dtype)
    return qkv, cos, sin


def slots_of(num_tokens: int, block_size: int) -> Tensor:
    return torch.randperm(NUM_BLOCKS * block_size)[:num_tokens].to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "num_heads", "num_kv_heads", "head_dim", "block_size"), SHAPES)
def test_rotates_and_writes_the_slots_and_nothing_else(
    num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    qkv, cos, sin = inputs(num_tokens, num_heads + 2 * num_kv_heads, head_dim, dtype)
    slots = slots_of(num_tokens, block_size)
    expected = torch.randn(2, NUM_BLOCKS, block_size, num_kv_heads, head_dim, device=DEVICE).to(dtype)
    caches, expected_qkv = expected.clone(), qkv.clone()
    reference.rotate_and_store(expected_qkv, num_heads, cos, sin, expected[0], expected[1], slots)

    triton_rotary.rotate_and_store(qkv, num_heads, cos, sin, caches[0], caches[1], slots)

    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(qkv[:, :num_heads], expected_qkv[:, :num_heads], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(caches, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(caches[1], expected[1])


def test_caches_whose_memory_has_heads_first() -> None:
    qkv, cos, sin = inputs(5, 6, 64, torch.float32)
    slots = slots_of(5, 8)
    expected = torch.zeros(2, NUM_BLOCKS, 8, 2, 64, device=DEVICE)
    memory = torch.zeros(2, 2, NUM_BLOCKS, 8, 64, device=DEVICE)
    caches = memory.permute(0, 2, 3, 1, 4)
    reference.rotate_and_store(qkv.clone(), 2, cos, sin, expected[0], expected[1], slots)

    triton_rotary.rotate_and_store(qkv, 2, cos, sin, caches[0], caches[1], slots)

    torch.testing.assert_close(caches, expected, rtol=TOLERANCE[torch.float32], atol=TOLERANCE[torch.float32])


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("cache_dtype", QUANTISED, ids=str)
@pytest.mark.parametrize(("num_tokens", "num_heads", "num_kv_heads", "head_dim", "block_size"), SHAPES)
def test_quantises_what_it_stores(
    num_tokens: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    cache_dtype: torch.dtype,
    scale_dtype: torch.dtype,
) -> None:
    qkv, cos, sin = inputs(num_tokens, num_heads + 2 * num_kv_heads, head_dim, torch.float16)
    qkv[0, num_heads:] = 0.0  # whose scale is 0
    slots = slots_of(num_tokens, block_size)
    size = (2, NUM_BLOCKS, block_size, num_kv_heads)
    numbers = torch.full((*size, head_dim), 3, dtype=torch.int8, device=DEVICE).view(cache_dtype)
    scales = torch.full(size, torch.nan, dtype=scale_dtype, device=DEVICE)
    found, found_scales = numbers.clone(), scales.clone()
    expected_qkv = qkv.clone()
    reference.rotate_and_store(
        expected_qkv, num_heads, cos, sin, numbers[0], numbers[1], slots, KVScales(scales[0], scales[1])
    )

    triton_rotary.rotate_and_store(
        qkv, num_heads, cos, sin, found[0], found[1], slots, KVScales(found_scales[0], found_scales[1])
    )

    tolerance = TOLERANCE[torch.float16]
    torch.testing.assert_close(found_scales, scales, rtol=tolerance * 4, atol=0, equal_nan=True)
    torch.testing.assert_close(qkv[:, :num_heads], expected_qkv[:, :num_heads], rtol=tolerance, atol=tolerance)
    difference = (found.float() - numbers.float()).abs().max()
    assert difference <= (0 if not ON_GPU else 1 if cache_dtype is torch.int8 else 32)
