"""One step's attention by the C kernels, for layers of any model."""

from dataclasses import dataclass, field

from torch import Tensor

from kernels.native.library import AttentionHeads, NativeKernels
from kernels.native.planning import StepPlan
from kernels.native.tiles import CacheStruct
from kernels.score_rules import ScoreRules


@dataclass(frozen=True, slots=True)
class NativePlan:
    """A step's queries, and what attends to them over a tiled cache."""

    kernels: NativeKernels
    step: StepPlan
    prepared: dict[object, object] = field(default_factory=dict)  # by the layers that share it: what else they need

    def store_and_attend(
        self, query: Tensor, key: Tensor, value: Tensor, cache: CacheStruct, slot_mapping: Tensor, rules: ScoreRules
    ) -> Tensor:
        """Put K and V, [num_tokens, num_kv_heads, head_dim], into their slots and return the queries' attention, shaped
        as they are: [num_tokens, num_heads, head_dim]. The plan was made for the rules' window."""
        self.kernels.store(key, value, cache, slot_mapping)
        heads = AttentionHeads.of(query.shape[1], key.shape[1], query.shape[2], rules)
        return self.kernels.attention(query, cache, self.step, heads)
