"""Storing K and V in slots, against its oracle."""

import pytest
import torch
from torch import Tensor

from kernels import ops, reference
from kernels.paged_batch import PagedBatch, PagedSequence
from tests.kernels.cases import blocks_apart


def caches(block_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (9, block_size, 3, 40)
    return torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("num_tokens", [1, 5, 9])
def test_equals_reference_and_touches_nothing_else(num_tokens: int, block_size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    # As the model gives them: [heads, tokens, head_dim] seen the other way round.
    key, value = torch.randn(2, 3, num_tokens, 40, generator=generator).to(dtype).transpose(1, 2)
    slots = torch.randperm(9 * block_size, generator=generator)[:num_tokens]
    found, expected = caches(block_size, dtype), caches(block_size, dtype)
    ops.store_kv(key, value, *found, slots)
    reference.store_kv(key, value, *expected, slots)
    assert int(expected[0].isfinite().sum()) == num_tokens * 3 * 40
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_that_lie_apart_are_written_as_any(block_size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 3, 7, 40, generator=generator).transpose(1, 2)
    slots = torch.randperm(9 * block_size, generator=generator)[:7]
    found, expected = caches(block_size, torch.float32), caches(block_size, torch.float32)
    apart = [blocks_apart(cache) for cache in found]
    ops.store_kv(key, value, apart[0], apart[1], slots)
    reference.store_kv(key, value, *expected, slots)
    for mine, theirs in zip(apart, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


def test_slot_mapping_follows_the_block_tables() -> None:
    batch = PagedBatch((PagedSequence([7, 2, 5], 3, 6), PagedSequence([1], 0, 1), PagedSequence([0, 3], 4, 1)), 4)
    # Positions 3 to 8 of the first: the last slot of block 7, all of block 2, the first of block 5.
    assert batch.slot_mapping() == [31, 8, 9, 10, 11, 20, 4, 12]
