"""The kernels by the device their tensors are on: torch's fused CPU attention, or Triton on a GPU."""

from typing import TypeAlias

import torch
from torch import Tensor

from kernels import cpu
from kernels.cpu import CpuPlan
from kernels.paged_batch import PagedBatch

AttentionPlan: TypeAlias = CpuPlan


def plan_attention(
    batch: PagedBatch, *, num_heads: int, num_kv_heads: int, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """Prepare one step's attention; the plan serves every layer. `dtype` is that of queries and caches."""
    if device.type != "cpu":
        raise NotImplementedError
    return cpu.plan_attention(batch, num_heads // num_kv_heads, dtype)


def paged_attention(query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Attend over the blocks as planned. Shapes as in `kernels.reference.paged_attention`."""
    return cpu.paged_attention(query, key_cache, value_cache, plan, scale)


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write K and V into their slots. Shapes as in `kernels.reference.store_kv`."""
    key_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    value_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)
