"""The kernels by the device their tensors are on: torch's operators on a CPU, Triton on a GPU.

Triton is imported on first use: a machine without a GPU need not have it.
"""

from typing import TypeAlias

import torch
from torch import Tensor

from kernels import cpu, cpu_invariant, cpu_plan, triton_plan
from kernels.cpu_invariant import InvariantPlan
from kernels.cpu_plan import CpuPlan
from kernels.draws import Draws
from kernels.kv_scales import KVScales
from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules
from kernels.triton_plan import SplitRule, TritonPlan

AttentionPlan: TypeAlias = CpuPlan | InvariantPlan | TritonPlan


def uses_triton(device: torch.device) -> bool:
    """Whether the kernels for tensors of a device are Triton's."""
    return device.type != "cpu"


def plan_attention(
    batch: PagedBatch,
    *,
    num_heads: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None = None,
    batch_invariant: bool = False,
) -> AttentionPlan:
    """Prepare one step's attention for every layer of that window. `dtype` is that of the queries. With
    `batch_invariant`, a query's result has the same bits whatever else the step holds."""
    if not uses_triton(device):
        if batch_invariant:
            return cpu_invariant.plan_attention(batch, dtype, window)
        return cpu_plan.plan_attention(batch, num_heads // num_kv_heads, dtype, window)
    rule = SplitRule.choose(device, num_kv_heads, batch_invariant=batch_invariant)
    return triton_plan.plan_attention(batch, num_heads // num_kv_heads, dtype, device, rule, window)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    rules: ScoreRules,
    scales: KVScales | None = None,
) -> Tensor:
    """Attend over the blocks as planned. Shapes as in `kernels.reference.paged_attention`."""
    if isinstance(plan, CpuPlan):
        return cpu.paged_attention(query, key_cache, value_cache, plan, rules, scales)
    if isinstance(plan, InvariantPlan):
        return cpu_invariant.paged_attention(query, key_cache, value_cache, plan, rules, scales)
    from kernels import triton_attention

    return triton_attention.paged_attention(query, key_cache, value_cache, plan, rules, scales)


def store_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Write K and V into their slots, quantised where there are scales. Shapes as in `kernels.reference.store_kv`."""
    if not uses_triton(key_cache.device):
        if scales is None:
            cpu.store(key, key_cache, slot_mapping)
            cpu.store(value, value_cache, slot_mapping)
        else:
            cpu.store_quantised_kv(key, value, key_cache, value_cache, slot_mapping, scales)
        return
    from kernels import triton_cache

    if scales is None:
        triton_cache.store_kv(key, value, key_cache, value_cache, slot_mapping)
    else:
        triton_cache.store_quantised_kv(key, value, key_cache, value_cache, slot_mapping, scales)


def copy_blocks(
    key_cache: Tensor,
    value_cache: Tensor,
    sources: Tensor,
    targets: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Copy whole blocks, with their scales where the caches are quantised. Shapes as in `kernels.reference`."""
    caches = [key_cache, value_cache] if scales is None else [key_cache, value_cache, scales.key, scales.value]
    if not uses_triton(key_cache.device):
        for cache in caches:
            cpu.copy_blocks(cache, sources, targets)
        return
    from kernels import triton_copy

    for cache in caches:
        triton_copy.copy_blocks(cache, sources, targets)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm in Triton. Shapes as in `kernels.reference.rms_norm`; all contiguous."""
    from kernels import triton_layer_parts

    return triton_layer_parts.rms_norm(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and the sum, in Triton. Shapes as in `kernels.reference.add_rms_norm`; all
    contiguous."""
    from kernels import triton_layer_parts

    return triton_layer_parts.add_rms_norm(x, residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, in Triton: [..., 2 * width] to [..., width]. gate_up is contiguous."""
    from kernels import triton_layer_parts

    return triton_layer_parts.silu_mul(gate_up)


def rotate_and_store(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> None:
    """Rotate the queries in place and store keys and values, in Triton. Shapes as in
    `kernels.reference.rotate_and_store`; qkv is contiguous."""
    from kernels import triton_rotary

    triton_rotary.rotate_and_store(qkv, num_heads, cos, sin, key_cache, value_cache, slot_mapping, scales)


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """Return the token of each draw, in Triton. Shapes as in `kernels.reference.draw`."""
    from kernels import triton_sampling

    return triton_sampling.draw(logits, draws)
