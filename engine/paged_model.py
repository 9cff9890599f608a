"""transformers' own model definitions over our blocks: the attention function, the step's tensors, the support gate."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from engine.kv_cache import KVCache, KVShape
from engine.scheduler import SchedulerOutput
from kernels import ops
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules

ATTENTION_NAME = "pagemill_paged"


class UnsupportedModel(Exception):
    """A model that the paged path would answer wrongly, with the reason. Refused at load, never served."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step's tensors. T packed tokens of S requests."""

    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    slot_mapping: Tensor  # [T]
    sample_rows: Tensor  # [S] each request's last row of T, whose logits are needed
    attention: "StepAttention"
    cache: KVCache


class StepAttention:
    """The plans of one step's attention, one a window, each made when a layer first asks for it."""

    def __init__(self, make: Callable[[int | None], ops.AttentionPlan]) -> None:
        """`make` returns the plan for a window."""
        self._make = make
        self._plans: dict[int | None, ops.AttentionPlan] = {}
        self.last_rules: ScoreRules | None = None  # of the layer that attended last

    def plan_for(self, rules: ScoreRules) -> ops.AttentionPlan:
        self.last_rules = rules
        if rules.window not in self._plans:
            self._plans[rules.window] = self._make(rules.window)
        return self._plans[rules.window]


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
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' registry: store K and V in their slots, attend over the block tables.

    query: [1, num_heads, T, head_dim]; key, value: [1, num_kv_heads, T, head_dim]. Returns [1, T, num_heads, head_dim].
    Raises UnsupportedModel for an option that changes the result and is not implemented.
    """
    if options.get("position_bias") is not None:
        raise UnsupportedModel("its attention uses position_bias, which the paged attention does not have yet")
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise UnsupportedModel("its attention has a mask other than the causal one")
    (key_cache, value_cache), scales = model_input.cache.layer(module.layer_idx)
    key, value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    ops.store_kv(key, value, key_cache, value_cache, model_input.slot_mapping, scales)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rules = ScoreRules(scale, sliding_window, softcap, s_aux)
    plan = model_input.attention.plan_for(rules)
    output = ops.paged_attention(query[0].transpose(0, 1), key_cache, value_cache, plan, rules, scales)
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention_forward)


class PagedModel:
    """A causal language model of transformers, run on packed tokens over a KV cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config.get_text_config()
        self.model = model.eval()
        self.device = model.device
        self.dtype = model.dtype
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.vocab_size: int = config.vocab_size
        self.max_model_len = _max_model_len(config)
        model.set_attn_implementation(ATTENTION_NAME)

    def kv_shape(self, block_size: int, kv_dtype: torch.dtype | None = None) -> KVShape:
        """Return the shape of a cache of `kv_dtype`, the model's type where that is None."""
        return KVShape(self.num_layers, self.num_kv_heads, self.head_dim, block_size, kv_dtype or self.dtype)

    def build_input(self, plan: SchedulerOutput, cache: KVCache) -> ModelInput:
        """Return a step's tensors on the model's device."""
        batch = PagedBatch(
            tuple(
                PagedSequence(share.request.block_ids, share.num_computed_tokens, share.num_scheduled_tokens)
                for share in plan.scheduled
            ),
            cache.shape.block_size,
        )
        token_ids: list[int] = []
        positions: list[int] = []
        sample_rows: list[int] = []
        for share in plan.scheduled:
            stop = share.num_computed_tokens + share.num_scheduled_tokens
            token_ids += share.request.token_ids[share.num_computed_tokens : stop]
            positions += range(share.num_computed_tokens, stop)
            sample_rows.append(len(token_ids) - 1)
        return ModelInput(
            input_ids=self._tensor(token_ids).unsqueeze(0),
            position_ids=self._tensor(positions).unsqueeze(0),
            slot_mapping=self._tensor(batch.slot_mapping()),
            sample_rows=self._tensor(sample_rows),
            attention=StepAttention(partial(self._plan_attention, batch)),
            cache=cache,
        )

    def _plan_attention(self, batch: PagedBatch, window: int | None) -> ops.AttentionPlan:
        return ops.plan_attention(
            batch,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            dtype=self.dtype,
            device=self.device,
            window=window,
        )

    def forward(self, model_input: ModelInput) -> Tensor:
        """Run one step, writing its KV into the cache. Returns float32 logits of the sampled rows, [S, vocab_size]."""
        with torch.inference_mode():
            output = self.model(
                input_ids=model_input.input_ids,
                position_ids=model_input.position_ids,
                use_cache=False,
                logits_to_keep=model_input.sample_rows,
                model_input=model_input,
            )
        logits: Tensor = output.logits[0]
        return logits.float()

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _max_model_len(config: PreTrainedConfig) -> int:
    """Return the context limit in tokens.

    LongRoPE changes the frequencies of a whole step as soon as one of its sequences is longer than the original
    context, so sequences are kept within it.
    """
    longest: int = config.max_position_embeddings
    rope = getattr(config, "rope_parameters", None) or {}
    return min(longest, rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else longest
