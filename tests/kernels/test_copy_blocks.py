"""Copying blocks, against its oracle."""

import pytest
import torch
from torch import Tensor

from engine.kv_cache import KVCache, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from kernels import ops, reference
from kernels.kv_scales import KVScales

NUM_BLOCKS = 7
SOURCES, TARGETS = torch.tensor([5, 0, 0]), torch.tensor([2, 6, 1])


def poisoned(*size: int, dtype: torch.dtype) -> Tensor:
    """Return numbers, of which block 3, which nobody asks for, has none."""
    values = torch.randn(NUM_BLOCKS, *size, generator=torch.Generator().manual_seed(1)).mul(40)
    if dtype.is_floating_point:
        values[3] = torch.nan
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("heads_first", [True, False])
def test_equals_reference_and_touches_nothing_else(dtype: torch.dtype, heads_first: bool) -> None:
    found = [poisoned(4, 3, 40, dtype=dtype) for _ in range(2)]
    if heads_first:  # the memory of a CPU's cache
        found = [cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for cache in found]
    scales = [poisoned(4, 3, dtype=torch.float16) for _ in range(2)]
    expected, expected_scales = [cache.clone() for cache in found], [scale.clone() for scale in scales]
    before = found[0].clone()
    quantised = dtype.itemsize == 1
    ops.copy_blocks(found[0], found[1], SOURCES, TARGETS, KVScales(*scales) if quantised else None)
    reference.copy_blocks(expected[0], expected[1], SOURCES, TARGETS, KVScales(*expected_scales) if quantised else None)
    for mine, theirs in zip((*found, *scales), (*expected, *expected_scales), strict=True):
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[0][[2, 6, 1]].float(), before[SOURCES].float())


def test_a_cache_copies_in_order_where_one_copy_depends_on_another() -> None:
    layers = tuple(AttentionLayer(1, 1, 4, None, source=index) for index in range(2))
    cache = KVCache(KVShape(layers, groups_of(layers, 128), 2, torch.float32), NUM_BLOCKS, torch.device("cpu"))
    for key_cache, value_cache in cache.layers:
        for block_id in range(NUM_BLOCKS):
            key_cache[block_id] = block_id
            value_cache[block_id] = -block_id
    cache.copy_blocks([(1, 2), (2, 3), (4, 1), (5, 1), (6, 5)])
    expected = [0, 5, 1, 1, 4, 6, 6]
    for key_cache, value_cache in cache.layers:
        assert key_cache[:, 0, 0, 0].tolist() == expected
        assert value_cache[:, 1, 0, 3].tolist() == [-number for number in expected]
