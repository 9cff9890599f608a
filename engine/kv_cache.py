"""The KV cache's memory: its tensors, and the size of a block."""

import math
import mmap
from collections.abc import Iterator, Sequence
from ctypes import Array
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kv_groups import KVGroup
from engine.kv_layout import AttentionLayer, KVLayout, Lane, Place
from kernels import ops
from kernels.kv_scales import GREATEST, KVScales, why_unsupported
from kernels.native.tiles import CacheStruct, struct_of_cache
from kernels.transfers import to_device

QUANTISED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SCALE_DTYPE = torch.bfloat16  # float32's range in two bytes; its rounding stays below half a step of the numbers


@dataclass(frozen=True, slots=True)
class KVShape:
    """What determines a block's size. With a `dtype` of one byte, each token and KV head has a scale beside it."""

    layers: tuple[AttentionLayer, ...]
    groups: tuple[KVGroup, ...]  # as `groups_of` returns them
    block_size: int
    dtype: torch.dtype
    is_tiled: bool = False  # laid out for the C kernels, in as many bytes

    @property
    def is_quantised(self) -> bool:
        return self.dtype in GREATEST

    @property
    def layout(self) -> KVLayout:
        return KVLayout(self.layers, self.groups)

    @property
    def bytes_per_block(self) -> int:
        """K and V of one block over the layers of a group, their scales included."""
        scale_bytes = SCALE_DTYPE.itemsize if self.is_quantised else 0
        return self.block_size * self.layout.bytes_per_slot(self.dtype.itemsize, scale_bytes)


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
    `scales[i]` what they are multiplied with, None where they are not quantised; `groups[i]` is the KV group whose
    blocks they are. Layers of different groups may lie in one lane: no block is of two groups at a time.

    On a CPU the memory has KV heads first: its attention multiplies matrices a head, which are so gathered as they lie.
    Where it is tiled, K and V are [num_blocks, num_kv_heads, block_size * head_dim], in the order of
    `kernels.native.tiles`, and `tiles[i]` is what the C kernels are given. Where shapes are mixed, blocks
    come first, in each the layers of a group, and in each of these the KV heads.

    Zeroed at the start, and kept finite: attention reads the unwritten tail of a block under a mask, where a NaN would
    still spread.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: torch.device) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        # By lane: numbers and, where they are quantised, scales, each [2, num_blocks, ...].
        self._memory = [self._allocate(lane, device) for lane in shape.layout.lanes]
        places = shape.layout.places
        self.groups: tuple[int, ...] = tuple(places[layer.source][0] for layer in shape.layers)
        of_layers = [self._at(places[layer.source][1], layer) for layer in shape.layers]
        self.layers: tuple[tuple[Tensor, Tensor], ...] = tuple((memory[0][0], memory[0][1]) for memory in of_layers)
        self.scales: tuple[KVScales | None, ...] = tuple(_scales_of(memory) for memory in of_layers)
        self.tiles: Array[CacheStruct] | None = None  # behind each other, as layers are
        if shape.is_tiled:
            triples = zip(self.layers, self.scales, shape.layers, strict=True)
            structs = [struct_of_cache(*kv, layer.head_dim, scales) for kv, scales, layer in triples]
            self.tiles = (CacheStruct * len(structs))(*structs)

    def _allocate(self, lane: Lane, device: torch.device) -> list[Tensor]:
        sizes = (2, self.num_blocks, self.shape.block_size)
        if self.shape.is_tiled:
            assert not self.shape.layout.is_mixed, "tiles have KV heads first"
            elements = self.shape.block_size * lane.width
            numbers = _lazy_zeros((2, lane.num_heads, self.num_blocks, elements), self.shape.dtype).transpose(1, 2)
        else:
            numbers = _zeros((*sizes, lane.num_heads, lane.width), self.shape.dtype, device)
        scales = [_zeros((*sizes, lane.num_scales, 1), SCALE_DTYPE, device)] if self.shape.is_quantised else []
        return [numbers, *scales]

    def _at(self, place: Place, layer: AttentionLayer) -> list[Tensor]:
        """Return a layer's numbers and, where they are quantised, scales, each [2, num_blocks, ...]."""
        memory = self._memory[place.lane]
        if not self.shape.layout.is_mixed:
            return memory
        block_size, heads = self.shape.block_size, layer.num_kv_heads
        blocks = memory[0].view(2, self.num_blocks, -1)
        numbers = blocks.narrow(2, block_size * place.num_numbers, block_size * heads * layer.head_dim)
        by_head = numbers.unflatten(2, (heads, block_size, layer.head_dim))
        return [by_head.transpose(2, 3), *(part.narrow(3, place.num_scales, heads) for part in memory[1:])]

    def layer(self, index: int) -> tuple[tuple[Tensor, Tensor], KVScales | None]:
        """Return a layer's (K, V) and their scales."""
        return self.layers[index], self.scales[index]

    def tiles_of(self, index: int) -> CacheStruct:
        """Return a layer's K and V for the C kernels, of a cache that is tiled; the next layer's lie behind them."""
        assert self.tiles is not None, "the cache is not tiled"
        return self.tiles[index]

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy blocks, (from, to), as if one after the other."""
        device = self.layers[0][0].device
        for batch in _independent(copies):
            sources, targets = zip(*batch, strict=True)
            on_device = to_device([*sources, *targets], torch.int64, device).view(2, -1)
            for memory in self._memory:
                ops.copy_blocks(memory[0][0], memory[0][1], on_device[0], on_device[1], _scales_of(memory))

    def block_bytes(self) -> list[Tensor]:
        """Return all memory as bytes, a tensor for each that was allocated: [num_blocks, ...], a block in the order in
        which it lies, so that long runs are copied."""
        views = [tensor.view(torch.uint8).movedim(1, 0) for tensors in self._memory for tensor in tensors]
        return [view.permute(0, *sorted(range(1, view.ndim), key=view.stride, reverse=True)) for view in views]

    def scrub(self, block_ids: list[int]) -> None:
        """Zero blocks that may hold NaN or infinity, before another request gets them."""
        for tensors in self._memory:
            for tensor in tensors:
                content = tensor.view(torch.uint8)  # torch fills no fp8
                content[:, to_device(block_ids, torch.int64, content.device)] = 0

    def scrub_all(self) -> None:
        """Zero all blocks."""
        for tensors in self._memory:
            for tensor in tensors:
                tensor.view(torch.uint8).zero_()


def _scales_of(memory: list[Tensor]) -> KVScales | None:
    return KVScales(*memory[1].squeeze(-1)) if len(memory) > 1 else None


def _zeros(sizes: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros of [2, num_blocks, block_size, num_kv_heads, elements]."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    two, num_blocks, block_size, num_kv_heads, elements = sizes
    return _lazy_zeros((two, num_kv_heads, num_blocks, block_size, elements), dtype).permute(0, 2, 3, 1, 4)


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
    """Return zeros as pages that the system provides when they are first touched, not all at the start.

    Small pages: a block lies in as many places as there are layers and heads, and numpy's and torch's own allocations
    ask the system for pages of 2 MiB, so that the first token would take hundreds of them.
    """
    num_bytes = math.prod(size) * dtype.itemsize
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(size)
