"""transformers' own model definitions over our blocks: the attention function, the step's tensors, the support gate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from engine.attention_layers import (
    OBSERVING_NAME,
    Observation,
    OptionsLost,
    layers_of,
    observing_attention,
    observing_inputs,
    refuse_other_attention,
)
from engine.attention_patches import Attend, hook_attention, patch_attention
from engine.context_length import max_model_len
from engine.kv_cache import KVCache, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from engine.step_plan import SchedulerOutput
from kernels import ops
from kernels.native.attending import NativePlan
from kernels.native.library import NativeKernels
from kernels.native.planning import is_served, plan_step
from kernels.native.tiles import GROUP
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from kernels.transfers import to_device

AttentionPlan: TypeAlias = ops.AttentionPlan | NativePlan

ATTENTION_NAME = "pagemill_paged"


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step's tensors. T packed tokens of S requests."""

    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    slot_mappings: tuple[Tensor, ...]  # by KV group, each [T]
    sample_rows: Tensor  # [R] the rows of T whose logits are needed: each request's last known token's and its draft's
    keeps_all_rows: bool  # whether the last hidden states of others are looked at too
    attention: "StepAttention"
    cache: KVCache

    @property
    def wanted_rows(self) -> Tensor | None:
        """The rows whose last hidden states are wanted, in ascending order; None for all."""
        if self.keeps_all_rows or len(self.sample_rows) >= self.input_ids.shape[1]:
            return None
        rows: Tensor = self.sample_rows.unique()
        return rows

    def slot_mapping(self, layer: int) -> Tensor:
        """Return the destination slots of a layer's K and V, [T]."""
        return self.slot_mappings[self.cache.groups[layer]]

    def store_and_attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rules: ScoreRules) -> Tensor:
        """Put a layer's K and V, [T, num_kv_heads, head_dim], into their slots and return the queries' attention,
        shaped as they are: [T, num_heads, head_dim]."""
        slots = self.slot_mapping(layer)
        plan = self.attention.plan_for(layer, rules, query.shape[1], key.shape[1])
        if isinstance(plan, NativePlan):
            return plan.store_and_attend(query, key, value, self.cache.tiles_of(layer), slots, rules)
        (key_cache, value_cache), scales = self.cache.layer(layer)
        ops.store_kv(key, value, key_cache, value_cache, slots, scales)
        return ops.paged_attention(query, key_cache, value_cache, plan, rules, scales)


class StepAttention:
    """The plans of one step's attention, one a KV group, window and shape of heads, made when a layer first asks."""

    def __init__(self, groups: Sequence[int], make: Callable[[int, ScoreRules, int, int], AttentionPlan]) -> None:
        """`groups` has each layer's KV group. `make` returns the plan for a group, rules, a number of query heads and
        one of KV heads. It is the same for all rules with one window, and a softcap or none."""
        self._groups = groups
        self._make = make
        self._plans: dict[tuple[int, int | None, bool, int, int], AttentionPlan] = {}
        self.last_rules: ScoreRules | None = None  # of the layer that attended last

    def plan_for(self, layer: int, rules: ScoreRules, num_heads: int, num_kv_heads: int) -> AttentionPlan:
        self.last_rules = rules
        key = (self._groups[layer], rules.window, rules.softcap is None, num_heads, num_kv_heads)
        if key not in self._plans:
            self._plans[key] = self._make(self._groups[layer], rules, num_heads, num_kv_heads)
        return self._plans[key]


class AttentionModule(Protocol):
    """What the attention function needs of a transformers attention layer."""

    layer_idx: int


def paged_attention_forward(
    module: AttentionModule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    model_input: ModelInput,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    slopes: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' registry: store K and V in their slots, attend over the block tables.

    query, key: [1, num_heads or num_kv_heads, T, head_dim]; value: [1, num_kv_heads, T, value_dim], value_dim at most
    head_dim. Returns [1, T, num_heads, value_dim]. `slopes` comes from `engine.attention_patches`.
    Raises UnsupportedModel for an option that changes the result and is not implemented.
    """
    refuse_other_attention(module, attention_mask, options)
    head_dim, value_dim = query.shape[3], value.shape[3]
    if value_dim < head_dim:  # latent attention, expanded: the cache has one width
        value = functional.pad(value, (0, head_dim - value_dim))
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = head_dim**-0.5 if scaling is None else scaling
    rules = ScoreRules(scale, sliding_window, softcap, s_aux, slopes)
    output = model_input.store_and_attend(module.layer_idx, query, key, value, rules)
    return output.unsqueeze(0)[..., :value_dim], None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


class PagedModel:
    """A causal language model of transformers, run on packed tokens over a KV cache."""

    def __init__(
        self,
        model: PreTrainedModel,
        native: NativeKernels | None = None,
        *,
        batch_invariant: bool = False,
        is_long: bool = False,
    ) -> None:
        """Takes the model over, for our attention alone; `native` are the C kernels where there are any. Raises
        UnsupportedModel.

        With `batch_invariant`, attention to a token does not depend on what else is in its step. `is_long` says that it
        uses LongRoPE's frequencies for long sequences.
        """
        config = model.config.get_text_config()
        self.model = model.eval()
        self.device = model.device
        self.dtype = model.dtype
        self.batch_invariant = batch_invariant
        self.vocab_size: int = config.vocab_size
        self.max_model_len = max_model_len(config, is_long=is_long)
        self._hook = patch_attention(model)
        try:
            self.layers = self._observe()
        except OptionsLost:
            self._hook = hook_attention(model)
            self.layers = self._observe()
        if self._hook is None:
            model.set_attn_implementation(ATTENTION_NAME)
        self.native = native if self._is_native() else None
        # The C kernels' tiles have KV heads first, so that layers of other heads would lie elsewhere in a block.
        self.kv_groups = groups_of(self.layers, self.max_model_len, may_mix=self.native is None)

    def _is_native(self) -> bool:
        """Whether the C kernels can be used in all layers."""
        if self.device.type != "cpu" or self.dtype is not torch.bfloat16:
            return False
        return all(is_served(layer.num_heads, layer.num_kv_heads, layer.head_dim) for layer in self.layers)

    def _observe(self) -> tuple[AttentionLayer, ...]:
        observation = Observation()
        if self._hook is None:
            self.model.set_attn_implementation(OBSERVING_NAME)
        self._call(observing_attention, observing_inputs(self.model), observation=observation)
        return layers_of(self.model, observation)

    def _call(self, attend: Attend, inputs: Mapping[str, Any], **for_attention: object) -> Any:
        """Run the model; its layers call `attend` with the options `for_attention`."""
        with torch.inference_mode():
            if self._hook is None:
                return self.model(**inputs, **for_attention)
            with self._hook.attending(partial(attend, **for_attention)):
                return self.model(**inputs)

    @property
    def is_hooked(self) -> bool:
        """Whether its layers get what they need of a step from a hook, not as arguments."""
        return self._hook is not None

    @property
    def head_dim(self) -> int:
        """Elements of its widest keys."""
        return max(layer.head_dim for layer in self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Tokens that the layers of each KV group see; None where they see all."""
        return tuple(group.window for group in self.kv_groups)

    def kv_shape(self, block_size: int, kv_dtype: torch.dtype | None = None) -> KVShape:
        """Return the shape of a cache of `kv_dtype`, the model's type where that is None."""
        is_tiled = self.native is not None and block_size % GROUP == 0
        return KVShape(self.layers, self.kv_groups, block_size, kv_dtype or self.dtype, is_tiled)

    def build_input(self, plan: SchedulerOutput, cache: KVCache) -> ModelInput:
        """Return a step's tensors on the model's device; what is pending is 0 in them."""
        batches = batches_of(plan, cache.shape)
        token_ids: list[int] = []
        positions: list[int] = []
        sample_rows: list[int] = []
        for share in plan.scheduled:
            stop = share.num_computed_tokens + share.num_scheduled_tokens
            token_ids += share.token_ids
            positions += range(share.num_computed_tokens, stop)
            sample_rows += range(len(token_ids) - 1 - len(share.draft), len(token_ids))
        return ModelInput(
            input_ids=self._tensor(token_ids).unsqueeze(0),
            position_ids=self._tensor(positions).unsqueeze(0),
            slot_mappings=tuple(self._tensor(batch.slot_mapping()) for batch in batches),
            sample_rows=self._tensor(sample_rows),
            keeps_all_rows=any(share.request.lacks_prompt_logprobs for share in plan.scheduled),
            attention=StepAttention(cache.groups, partial(self._plan_attention, batches, cache)),
            cache=cache,
        )

    def _plan_attention(
        self,
        batches: Sequence[PagedBatch],
        cache: KVCache,
        group: int,
        rules: ScoreRules,
        num_heads: int,
        num_kv_heads: int,
    ) -> AttentionPlan:
        if cache.tiles is not None:
            assert self.native is not None, "tiled caches are for the C kernels"
            queries = num_heads // num_kv_heads
            step = plan_step(batches[group], queries, rules.window, is_invariant=self.batch_invariant)
            return NativePlan(self.native, step)
        return ops.plan_attention(
            batches[group],
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            dtype=self.dtype,
            device=self.device,
            window=rules.window,
            batch_invariant=self.batch_invariant,
        )

    def forward(self, model_input: ModelInput) -> Tensor:
        """Run one step, writing its KV into the cache. Returns float32 logits of the sampled rows, [R, vocab_size]."""
        inputs = {
            "input_ids": model_input.input_ids,
            "position_ids": model_input.position_ids,
            "use_cache": False,
            "logits_to_keep": model_input.sample_rows,
        }
        output = self._call(paged_attention_forward, inputs, model_input=model_input)
        logits: Tensor = output.logits[0]
        return logits.float()

    def _tensor(self, values: list[int]) -> Tensor:
        return to_device(values, torch.int64, self.device)


def batches_of(plan: SchedulerOutput, shape: KVShape) -> list[PagedBatch]:
    """Return a step as each KV group's block tables have it."""
    tables = zip(*(share.request.block_tables for share in plan.scheduled), strict=True)
    batches = [
        PagedBatch(
            tuple(
                PagedSequence(table.block_ids, share.num_computed_tokens, share.num_scheduled_tokens)
                for table, share in zip(of_group, plan.scheduled, strict=True)
            ),
            shape.block_size,
        )
        for of_group in tables
    ]
    assert len(batches) == len(shape.groups), "a request has a block table for each KV group of the cache"
    return batches
