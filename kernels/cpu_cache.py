"""Reading blocks on the CPU: K or V of runs of blocks as matrices in the model's type, quantised caches included."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from kernels.kv_scales import KVScales

NUM_PAIRS = 2**16  # of bytes


@dataclass(frozen=True, slots=True)
class Gathered:
    """K or V of equal runs of blocks, one matrix a KV head and run."""

    numbers: Tensor  # [num_kv_heads * num_runs, num_keys, head_dim]
    scales: Tensor | None  # [num_kv_heads * num_runs, 1, num_keys], what each key's numbers are still to be times

    def multiplied(self) -> Tensor:
        """Return the matrices with their scales multiplied in, [num_kv_heads * num_runs, num_keys, head_dim]."""
        return self.numbers if self.scales is None else self.numbers.mul_(self.scales.transpose(1, 2))


@dataclass(frozen=True, slots=True)
class Cache:
    """K or V, KV heads first: memory that has them first too, within each block or over all, is gathered as it lies."""

    numbers: Tensor  # [num_kv_heads, num_blocks, block_size, head_dim]
    scales: Tensor | None  # [num_kv_heads, num_blocks, block_size]
    dtype: torch.dtype  # to compute in

    @classmethod
    def of(cls, cache: Tensor, scales: Tensor | None, dtype: torch.dtype) -> "Cache":
        """`cache` and `scales` have their KV heads where the kernels take them."""
        return cls(cache.permute(2, 0, 1, 3), None if scales is None else scales.permute(2, 0, 1), dtype)

    @classmethod
    def both(
        cls, key_cache: Tensor, value_cache: Tensor, scales: KVScales | None, dtype: torch.dtype
    ) -> tuple["Cache", "Cache"]:
        """Return K and V, quantised where there are scales."""
        if scales is None:
            return cls.of(key_cache, None, dtype), cls.of(value_cache, None, dtype)
        return cls.of(key_cache, scales.key, dtype), cls.of(value_cache, scales.value, dtype)

    def gather(self, block_ids: Tensor, num_runs: int) -> Gathered:
        """Return K or V of `num_runs` runs of blocks. block_ids: [num_runs * num_blocks]."""
        num_matrices = self.numbers.shape[0] * num_runs
        shape = (num_matrices, -1, self.numbers.shape[-1])
        if self.scales is None:
            return Gathered(_gathered(self.numbers, block_ids).view(shape), None)
        as_bytes = _gathered(self.numbers.view(torch.int8), block_ids)  # torch gathers no fp8
        is_integer = self.numbers.dtype is torch.int8
        numbers = as_bytes.to(self.dtype) if is_integer else _widened(as_bytes, self.numbers.dtype, self.dtype)
        scales = self.scales.index_select(1, block_ids).to(self.dtype).view(num_matrices, 1, -1)
        gathered = Gathered(numbers.view(shape), scales)
        # Products of unscaled numbers may be beyond float16's range.
        return Gathered(gathered.multiplied(), None) if self.dtype is torch.float16 else gathered


def _gathered(numbers: Tensor, block_ids: Tensor) -> Tensor:
    """Return blocks, KV heads first, contiguous. numbers: [num_kv_heads, num_blocks, block_size, head_dim].

    Where heads do not come first in memory, but a block's numbers of a head adjoin, each head's are gathered for
    themselves: torch takes twenty times as long for all at once.
    """
    num_kv_heads, _, block_size, head_dim = numbers.shape
    if numbers.is_contiguous() or numbers.stride()[2:] != (head_dim, 1):
        return numbers.index_select(1, block_ids)
    found = numbers.new_empty(num_kv_heads, len(block_ids), block_size, head_dim)
    for of_head, target in zip(numbers, found, strict=True):
        torch.index_select(of_head.flatten(1), 0, block_ids, out=target.flatten(1))
    return found


def _widened(numbers: Tensor, narrow: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Return bytes that are numbers of a type of one byte, an even count, in a wider type: torch takes ten times as
    long."""
    pairs = numbers.flatten().view(torch.uint16).to(torch.int32)
    return _pair_table(narrow, dtype).index_select(0, pairs).view(dtype).view(numbers.shape)


@cache
def _pair_table(narrow: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Return every pair of bytes in the wider type, each pair as one integer: [NUM_PAIRS]."""
    pairs = torch.arange(NUM_PAIRS, dtype=torch.int32).to(torch.uint16).view(narrow).to(dtype)
    return pairs.view(torch.int32 if dtype.itemsize == 2 else torch.int64)
