"""Tensors in the tiles that the C kernels multiply: see `tiles.h` and `cache.h`. All are bfloat16 on the CPU."""

import ctypes
from ctypes import c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

TILE_ROWS = 16
TILE_DEPTH = 32
GROUP = 16  # slots of the KV cache that lie together; a block is one or more groups


class MatrixStruct(ctypes.Structure):
    """`Matrix` of matrix.h."""

    _fields_ = [("tiles", c_void_p), ("bias", c_void_p), ("num_columns", c_int64), ("depth", c_int64)]


class CacheStruct(ctypes.Structure):
    """`Cache` of cache.h."""

    _fields_ = [("keys", c_void_p), ("values", c_void_p), ("num_slots", c_int64)]


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """The weights of a linear layer as column tiles."""

    tiles: Tensor  # [num_columns / 16, depth / 32, 512], whole tiles
    bias: Tensor | None  # [num_columns]
    num_columns: int  # outputs
    depth: int  # inputs

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "TiledMatrix":
        """weight: [num_columns, depth], as in a linear layer; bias: [num_columns]."""
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        num_columns, depth = weight.shape
        padded = functional.pad(weight, (0, -depth % TILE_DEPTH, 0, -num_columns % TILE_ROWS))
        by_tile = padded.view(-1, TILE_ROWS, padded.shape[1] // TILE_DEPTH, TILE_DEPTH // 2, 2).permute(0, 2, 3, 1, 4)
        tiles = by_tile.contiguous().view(by_tile.shape[0], by_tile.shape[1], -1)
        return cls(tiles, None if bias is None else bias.contiguous(), num_columns, depth)

    def interleaved(self) -> "TiledMatrix":
        """Return the matrix whose columns are sixteen of the first half's, sixteen of the second's, and so on."""
        halves = self.tiles.view(2, -1, *self.tiles.shape[1:])
        bias = None if self.bias is None else self.bias.view(2, -1, TILE_ROWS).transpose(0, 1).reshape(-1)
        return TiledMatrix(halves.transpose(0, 1).reshape(self.tiles.shape), bias, self.num_columns, self.depth)

    def struct(self) -> MatrixStruct:
        """Return what the kernels read; it points into this."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return MatrixStruct(self.tiles.data_ptr(), bias, self.num_columns, self.depth)


def row_tiles_size(num_rows: int, depth: int) -> int:
    """Return the elements of row tiles that hold [num_rows, depth]."""
    return -(-num_rows // TILE_ROWS) * TILE_ROWS * (-(-depth // TILE_DEPTH) * TILE_DEPTH)


def struct_of_cache(keys: Tensor, values: Tensor, head_dim: int) -> CacheStruct:
    """keys, values: [num_blocks, num_kv_heads, block_size * head_dim], whose memory has KV heads first."""
    return CacheStruct(keys.data_ptr(), values.data_ptr(), keys.stride(1) // head_dim)


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
