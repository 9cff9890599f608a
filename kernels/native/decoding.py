"""Decodes by the C kernel, as `kernels.cpu` takes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from kernels.native.library import NativeKernels
from kernels.native.planning import DecodePlan, plan_decodes
from kernels.paged_batch import PagedSequence
from kernels.score_rules import ScoreRules


@dataclass(frozen=True, slots=True)
class PlannedDecodes:
    """A step's decodes, and what attends to them."""

    kernels: NativeKernels
    plan: DecodePlan

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, rules: ScoreRules, output: Tensor) -> None:
        """Write the decodes' rows of `output`. Shapes as in `NativeKernels.decode_attention`."""
        self.kernels.decode_attention(query, key_cache, value_cache, self.plan, rules, output)


@dataclass(frozen=True, slots=True)
class NativeDecode:
    """The C kernel for layers of one shape of heads."""

    kernels: NativeKernels
    num_heads: int
    num_kv_heads: int

    def plan(self, decodes: Sequence[tuple[int, PagedSequence]], block_size: int, window: int | None) -> PlannedDecodes:
        """Plan sequences of one query each, given with their packed token."""
        plan = plan_decodes(decodes, block_size, self.num_heads, self.num_kv_heads, window)
        return PlannedDecodes(self.kernels, plan)
