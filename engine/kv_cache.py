"""The KV cache's memory: one K and one V tensor a layer, and how many blocks fit in a given amount."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels import ops


@dataclass(frozen=True, slots=True)
class KVShape:
    """What determines a block's size."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """K and V of one block over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * self.dtype.itemsize


class KVCache:
    """The blocks' content. `layers[i]` is (K, V), each [num_blocks, block_size, num_kv_heads, head_dim].

    On a CPU the memory has KV heads first: its attention multiplies matrices a head, which are so gathered as they lie.

    Zeroed at the start, and kept finite: attention reads the unwritten tail of a block under a mask, where a NaN would
    still spread.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        sizes = (num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        if device.type == "cpu":
            heads_first = (shape.num_layers, 2, sizes[2], *sizes[:2], sizes[3])
            memory = _lazy_zeros(heads_first, shape.dtype).permute(0, 1, 3, 4, 2, 5)
        else:
            memory = torch.zeros((shape.num_layers, 2, *sizes), dtype=shape.dtype, device=device)
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple((layer[0], layer[1]) for layer in memory)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, (from, to), as if one after the other."""
        device = self.layers[0][0].device
        for batch in _independent(copies):
            sources, targets = torch.tensor(batch, dtype=torch.int64, device=device).unbind(dim=1)
            for key_cache, value_cache in self.layers:
                ops.copy_blocks(key_cache, value_cache, sources, targets)

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks that may hold NaN or infinity, before another request gets them."""
        for key_cache, value_cache in self.layers:
            key_cache[block_ids] = 0
            value_cache[block_ids] = 0


def _independent(copies: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield copies in their order, in runs that may be made all at once: no block is both read and written in one, and
    none written twice."""
    batch: list[tuple[int, int]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, target in copies:
        if source in written or target in read or target in written:
            yield batch
            batch, read, written = [], set(), set()
        batch.append((source, target))
        read.add(source)
        written.add(target)
    if batch:
        yield batch


def _lazy_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros as pages that the system provides when they are first touched, not all at the start."""
    as_bytes = np.zeros((*size[:-1], size[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(as_bytes).view(dtype)
