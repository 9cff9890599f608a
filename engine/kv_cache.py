"""The KV cache's memory: one K and one V tensor a layer, and how many blocks fit in a given amount."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels import ops
from kernels.kv_scales import GREATEST, KVScales, why_unsupported

QUANTISED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SCALE_DTYPE = torch.bfloat16  # float32's range in two bytes; its rounding stays below half a step of the numbers


@dataclass(frozen=True, slots=True)
class KVShape:
    """What determines a block's size. With a `dtype` of one byte, each token and KV head has a scale beside it."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype

    @property
    def is_quantised(self) -> bool:
        return self.dtype in GREATEST

    @property
    def bytes_per_block(self) -> int:
        """K and V of one block over all layers, their scales included."""
        head_bytes = self.head_dim * self.dtype.itemsize + (SCALE_DTYPE.itemsize if self.is_quantised else 0)
        return 2 * self.num_layers * self.num_kv_heads * self.block_size * head_bytes


class UnsupportedCache(Exception):
    """A type of KV cache that a model cannot have on its device, with the reason."""


def choose_kv_dtype(name: str, model_dtype: torch.dtype, head_dim: int, device: torch.device) -> torch.dtype:
    """Return the cache's type for "auto" (the model's) or a name in QUANTISED. Raises UnsupportedCache."""
    if name == "auto":
        return model_dtype
    reason = why_unsupported(device, QUANTISED[name], head_dim)
    if reason is not None:
        raise UnsupportedCache(f"{name} is not possible for this model here: {reason}")
    return QUANTISED[name]


class KVCache:
    """The blocks' content. `layers[i]` is (K, V), each [num_blocks, block_size, num_kv_heads, head_dim], and
    `scales[i]` what they are multiplied with, None where they are not quantised.

    On a CPU the memory has KV heads first: its attention multiplies matrices a head, which are so gathered as they lie.

    Zeroed at the start, and kept finite: attention reads the unwritten tail of a block under a mask, where a NaN would
    still spread.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        sizes = (shape.num_layers, 2, num_blocks, shape.block_size, shape.num_kv_heads)
        numbers = _zeros((*sizes, shape.head_dim), shape.dtype, device)
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple((layer[0], layer[1]) for layer in numbers)
        self.scales: tuple[KVScales | None, ...] = (None,) * shape.num_layers
        self._memory = [numbers]  # [num_layers, 2, num_blocks, ...] each
        if shape.is_quantised:
            scales = _zeros((*sizes, 1), SCALE_DTYPE, device)
            self.scales = tuple(KVScales(layer[0], layer[1]) for layer in scales.squeeze(-1))
            self._memory.append(scales)

    def layer(self, index: int) -> tuple[tuple[Tensor, Tensor], KVScales | None]:
        """Return a layer's (K, V) and their scales."""
        return self.layers[index], self.scales[index]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, (from, to), as if one after the other."""
        device = self.layers[0][0].device
        for batch in _independent(copies):
            sources, targets = torch.tensor(batch, dtype=torch.int64, device=device).unbind(dim=1)
            for (key_cache, value_cache), scales in zip(self.layers, self.scales, strict=True):
                ops.copy_blocks(key_cache, value_cache, sources, targets, scales)

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks that may hold NaN or infinity, before another request gets them."""
        for memory in self._memory:
            memory.view(torch.uint8)[:, :, block_ids] = 0  # torch fills no fp8


def _zeros(sizes: tuple[int, int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros of [num_layers, 2, num_blocks, block_size, num_kv_heads, elements]."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    num_layers, two, num_blocks, block_size, num_kv_heads, elements = sizes
    heads_first = (num_layers, two, num_kv_heads, num_blocks, block_size, elements)
    return _lazy_zeros(heads_first, dtype).permute(0, 1, 3, 4, 2, 5)


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
