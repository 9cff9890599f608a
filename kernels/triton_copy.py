"""Copying whole blocks of a cache on a GPU, in Triton. Not run on a GPU yet; see `kernels.triton_attention`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_BYTES = 4096  # of a block that a program copies
NUM_WARPS = 4


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks of K, of V or of their scales. Shapes as in `kernels.reference.copy_blocks`; a block's elements
    adjoin, whatever the stride between blocks."""
    assert cache[0].is_contiguous(), "a block's elements adjoin"
    assert sources.is_contiguous()
    assert targets.is_contiguous()
    if cache.dtype.itemsize == 1:
        cache = cache.view(torch.int8)
    num_elements, tile_elements = cache[0].numel(), TILE_BYTES // cache.dtype.itemsize
    copy_tile[(len(sources), triton.cdiv(num_elements, tile_elements))](
        cache,
        sources,
        targets,
        cache.stride(0),
        NUM_ELEMENTS=num_elements,
        TILE_ELEMENTS=tile_elements,
        num_warps=NUM_WARPS,
    )


@triton.jit  # type: ignore[untyped-decorator]
def copy_tile(  # type: ignore[no-untyped-def]
    cache_ptr,  # [num_blocks, NUM_ELEMENTS]
    sources_ptr,  # [num_copies], int64
    targets_ptr,  # [num_copies], int64
    block_stride,
    NUM_ELEMENTS: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Copy TILE_ELEMENTS of one block: program (copy, tile). Offsets are 64-bit throughout."""
    copy = tl.program_id(0)
    elements = tl.program_id(1) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    mask = elements < NUM_ELEMENTS
    source = tl.load(sources_ptr + copy) * block_stride
    target = tl.load(targets_ptr + copy) * block_stride
    tl.store(cache_ptr + target + elements, tl.load(cache_ptr + source + elements, mask=mask), mask=mask)
