"""Tensors in the tiles that the C kernels multiply: see `tiles.h` and `cache.h`. On the CPU, and bfloat16 but for
quantised caches."""

import ctypes
from ctypes import c_int64, c_void_p
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.kv_scales import KVScales, quantise

TILE_ROWS = 16
TILE_DEPTH = 32
KINDS = {torch.bfloat16: 0, torch.int8: 1, torch.float8_e4m3fn: 2}  # of a cache's elements: `Kind` of widening.h
GROUP = 16  # slots of the KV cache that lie together; a block is one or more groups


class MatrixStruct(ctypes.Structure):
    """`Matrix` of matrix.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("tiles", "scales", "bias")),
        *((name, c_int64) for name in ("num_columns", "depth", "most_integer_rows")),
    ]


class CacheStruct(ctypes.Structure):
    """`Cache` of cache.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        *((name, c_int64) for name in ("num_slots", "kind")),
    ]


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """The weights of a linear layer as column tiles."""

    tiles: Tensor  # [num_columns / 16, depth / 32, 512], whole tiles; bfloat16, or int8
    scales: Tensor | None  # [num_columns], float32: what int8 is to be multiplied with
    bias: Tensor | None  # [num_columns]
    num_columns: int  # outputs
    depth: int  # inputs
    most_integer_rows: int = 0  # up to so many rows are multiplied with int8 as integers; with more, int8 is widened

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "TiledMatrix":
        """weight: [num_columns, depth], as in a linear layer; bias: [num_columns]."""
        return cls(_column_tiles(weight.detach()), None, _plain(bias), *weight.shape)

    @classmethod
    def int8(cls, weight: Tensor, bias: Tensor | None, most_integer_rows: int) -> "TiledMatrix":
        """The same with the weights rounded to int8, one scale a column."""
        numbers, scales = quantise(weight.detach(), torch.int8, torch.float32)
        num_columns, depth = weight.shape
        return cls(_column_tiles(numbers), scales, _plain(bias), num_columns, depth, most_integer_rows)

    def interleaved(self) -> "TiledMatrix":
        """Return the matrix whose columns are sixteen of the first half's, sixteen of the second's, and so on."""
        halves = self.tiles.view(2, -1, *self.tiles.shape[1:])
        tiles = halves.transpose(0, 1).reshape(self.tiles.shape)
        return replace(self, tiles=tiles, scales=_interleaved(self.scales), bias=_interleaved(self.bias))

    def struct(self) -> MatrixStruct:
        """Return what the kernels read; it points into this."""
        scales, bias = (None if x is None else x.data_ptr() for x in (self.scales, self.bias))
        counts = (self.num_columns, self.depth, self.most_integer_rows)
        return MatrixStruct(self.tiles.data_ptr(), scales, bias, *counts)


def _column_tiles(weight: Tensor) -> Tensor:
    num_columns, depth = weight.shape
    padded = functional.pad(weight, (0, -depth % TILE_DEPTH, 0, -num_columns % TILE_ROWS))
    by_tile = padded.view(-1, TILE_ROWS, padded.shape[1] // TILE_DEPTH, TILE_DEPTH // 2, 2).permute(0, 2, 3, 1, 4)
    return by_tile.contiguous().view(by_tile.shape[0], by_tile.shape[1], -1)


def _plain(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().to(torch.bfloat16).contiguous()


def _interleaved(by_column: Tensor | None) -> Tensor | None:
    return None if by_column is None else by_column.view(2, -1, TILE_ROWS).transpose(0, 1).reshape(-1)


def row_tiles(num_rows: int, depth: int, dtype: torch.dtype) -> Tensor:
    """Return room for row tiles of [num_rows, depth] and a scale in float32 for each of their rows."""
    padded_rows = -(-num_rows // TILE_ROWS) * TILE_ROWS
    padded_depth = -(-depth // TILE_DEPTH) * TILE_DEPTH
    return torch.empty(padded_rows * (padded_depth + torch.float32.itemsize // dtype.itemsize), dtype=dtype)


def struct_of_cache(keys: Tensor, values: Tensor, head_dim: int, scales: KVScales | None = None) -> CacheStruct:
    """keys, values: [num_blocks, num_kv_heads, block_size * head_dim], whose memory has KV heads first, and that of the
    scales too."""
    pointers = (None, None) if scales is None else (scales.key.data_ptr(), scales.value.data_ptr())
    num_slots = keys.stride(1) // head_dim
    return CacheStruct(keys.data_ptr(), values.data_ptr(), *pointers, num_slots, KINDS[keys.dtype])


def tiled_keys(keys: Tensor) -> Tensor:
    """Return keys, [num_blocks, block_size, num_kv_heads, head_dim], as the cache holds them: [num_blocks,
    num_kv_heads, block_size * head_dim], the memory of the result with KV heads first."""
    num_blocks, block_size, num_kv_heads, head_dim = keys.shape
    groups = keys.view(num_blocks, block_size // GROUP, GROUP, num_kv_heads, head_dim // 2, 2)
    return _heads_first(groups.permute(3, 0, 1, 4, 2, 5), num_blocks)


def tiled_values(values: Tensor) -> Tensor:
    """The same of values."""
    num_blocks, block_size, num_kv_heads, head_dim = values.shape
    sixteens = (head_dim // TILE_ROWS, TILE_ROWS)
    groups = values.view(num_blocks, block_size // GROUP, GROUP // 2, 2, num_kv_heads, *sixteens)
    return _heads_first(groups.permute(4, 0, 1, 5, 2, 6, 3), num_blocks)


def _heads_first(groups: Tensor, num_blocks: int) -> Tensor:
    return (
        torch.clone(groups, memory_format=torch.contiguous_format).view(groups.shape[0], num_blocks, -1).transpose(0, 1)
    )
