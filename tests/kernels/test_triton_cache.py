"""The Triton cache kernel against its oracle."""

import pytest
import torch
from torch import Tensor

from kernels import reference, triton_cache
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
INT32_ELEMENTS = 2**31


def random(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "head_dim", "block_size"),
    [(1, 1, 32, 8), (7, 3, 64, 16), (5, 2, 80, 16), (3, 8, 256, 128), (4, 1, 100, 5)],
)
def test_writes_the_slots_and_nothing_else(
    num_tokens: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    num_blocks = 4
    key, value = random(2, num_tokens, num_kv_heads, head_dim, dtype=dtype)
    slots = torch.randperm(num_blocks * block_size)[:num_tokens].to(DEVICE)
    expected = random(2, num_blocks, block_size, num_kv_heads, head_dim, dtype=dtype)
    caches = expected.clone()
    reference.store_kv(key, value, expected[0], expected[1], slots)

    triton_cache.store_kv(key, value, caches[0], caches[1], slots)

    assert torch.equal(caches, expected)


def test_takes_what_the_model_hands_over() -> None:
    """Heads before tokens, and K and V of a block side by side."""
    key = random(2, 5, 64).transpose(0, 1)
    value = random(5, 2, 64)
    slots = torch.tensor([9, 2, 31, 30, 0], device=DEVICE)
    expected = torch.zeros(4, 2, 8, 2, 64, device=DEVICE)
    caches = expected.clone()
    reference.store_kv(key, value, expected[:, 0], expected[:, 1], slots)

    triton_cache.store_kv(key, value, caches[:, 0], caches[:, 1], slots)

    assert torch.equal(caches, expected)


def test_slots_beyond_two_to_the_31_elements() -> None:
    block_size, num_kv_heads, head_dim = 128, 8, 256
    num_blocks = INT32_ELEMENTS // (2 * block_size * num_kv_heads * head_dim) + 2
    caches = torch.empty(  # of which only the touched pages take memory
        num_blocks, 2, block_size, num_kv_heads, head_dim, dtype=torch.float16, device=DEVICE
    )
    key, value = random(2, 2, num_kv_heads, head_dim, dtype=torch.float16)
    last = num_blocks * block_size - 1
    slots = torch.tensor([last, 3], device=DEVICE)

    triton_cache.store_kv(key, value, caches[:, 0], caches[:, 1], slots)

    assert torch.equal(caches[-1, :, -1], torch.stack((key[0], value[0])))
    assert torch.equal(caches[0, :, 3], torch.stack((key[1], value[1])))
