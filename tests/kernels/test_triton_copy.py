"""The Triton kernel that copies blocks, against its oracle."""

import pytest
import torch

from kernels import reference, triton_copy
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
INT32_ELEMENTS = 2**31


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("block_shape", [(16, 3, 64), (5, 2, 80), (1, 1, 3), (16, 2), (32, 8, 80)], ids=str)
def test_writes_the_targets_and_nothing_else(block_shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cache = torch.randn(6, *block_shape, device=DEVICE).mul(40).to(dtype)
    unused = torch.zeros_like(cache)
    sources, targets = torch.tensor([5, 0, 0], device=DEVICE), torch.tensor([2, 4, 1], device=DEVICE)
    expected = cache.clone()
    reference.copy_blocks(expected, unused, sources, targets)

    triton_copy.copy_blocks(cache, sources, targets)

    assert torch.equal(cache.float(), expected.float())


def test_blocks_that_lie_apart() -> None:
    caches = torch.randn(6, 2, 16, 2, 64, device=DEVICE)  # K and V of a block side by side
    expected = caches.clone()
    sources, targets = torch.tensor([5], device=DEVICE), torch.tensor([0], device=DEVICE)
    reference.copy_blocks(expected[:, 1], expected[:, 1], sources, targets)

    triton_copy.copy_blocks(caches[:, 1], sources, targets)

    assert torch.equal(caches, expected)


def test_blocks_beyond_two_to_the_31_elements() -> None:
    block_elements = 2**20
    num_blocks = INT32_ELEMENTS // block_elements + 2
    cache = torch.empty(num_blocks, 1024, 1, 1024, dtype=torch.float16, device=DEVICE)  # few pages are touched
    cache[0] = torch.randn(1024, 1, 1024)
    triton_copy.copy_blocks(cache, torch.tensor([0], device=DEVICE), torch.tensor([num_blocks - 1], device=DEVICE))
    assert torch.equal(cache[-1], cache[0])
