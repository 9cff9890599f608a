"""What fits in a device's memory: plain arithmetic over a model's shape, no model and no torch needed.

KV bytes a token are 2 * layers * KV heads * (head dimension * bytes an element + bytes of a scale): one key and one
value in each layer that has its own, and a scale for each where they are quantised.
Only KV heads count, so grouped-query attention shrinks the cache by query heads / KV heads. Of layers with a window, a
sequence keeps the window's tokens only, in blocks of a KV group's layers. Groups, and what their blocks hold, are those
of the engine (`engine.kv_layout`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.kv_groups import most_held
from engine.kv_layout import AttentionLayer, KVLayout, groups_of

# Hidden-sized vectors that one token of a step keeps alive at once: residual, norm, query, key, value, attention
# output, and the two halves of a feed-forward layer that is about four times as wide.
ACTIVATION_VECTORS = 16
LOGITS_ELEMENT_BYTES = 4  # logits are float32
ACTIVATION_ELEMENT_BYTES = 2
OUTPUT_BYTES = 12  # that an output of a linear layer in int8, of about hidden_size columns, has beside them at most


@dataclass(frozen=True, slots=True)
class ParameterSplit:
    """What of a model's parameters linear layers hold, and what else does: embeddings, norms, merged experts.

    An LM head that shares the embeddings' parameters is a linear layer nevertheless, and counts in both.
    """

    linear: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a decoder model that decide its memory.

    Raises ValueError, naming the field, for one out of range.
    """

    layers: tuple[AttentionLayer, ...]
    hidden_size: int
    vocab_size: int
    num_parameters: int
    split: ParameterSplit | None = None  # None: not known, all but one embedding is taken for linear layers
    max_model_len: int | None = None  # tokens, by which layers are divided into groups; None: the plan's context

    def __post_init__(self) -> None:
        values = {field: getattr(self, field) for field in ("hidden_size", "vocab_size", "num_parameters")}
        values["num_layers"] = len(self.layers)
        if self.max_model_len is not None:
            values["max_model_len"] = self.max_model_len
        for layer in self.layers:
            values |= {field: getattr(layer, field) for field in ("num_heads", "num_kv_heads", "head_dim")}
            _check_positive(values)
            if layer.num_heads % layer.num_kv_heads:
                raise ValueError(
                    f"num_heads is {layer.num_heads}; it must be a multiple of num_kv_heads ({layer.num_kv_heads})"
                )
        _check_positive(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Where and how a model would run.

    Raises ValueError, naming the field, for a value out of range.
    """

    memory_bytes: int
    weight_bits: int  # bits a parameter
    linear_bits: int | None = None  # the same of linear layers: 8 where they are held in int8, None: as the rest
    kv_element_bytes: int
    kv_scale_bytes: int = 0  # of the scale that each token and KV head of a quantised cache has, K's and V's each
    context: int  # tokens, prompt and output together
    block_size: int = 16  # tokens a block
    token_budget: int = 2048  # tokens a step may compute
    max_num_seqs: int = 128  # requests that may share a step

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value, least = getattr(self, field), int(field != "kv_scale_bytes")
            if value is not None and value < least:
                raise ValueError(f"{field} is {value}; it must be at least {least}")
        if self.linear_bits not in {None, 8}:
            raise ValueError(f"linear_bits is {self.linear_bits}; it must be 8, or left out")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFit:
    """How many sequences of one length fit at once."""

    tokens: int  # length of each sequence
    kv_bytes: int  # one sequence's blocks while it decodes, the last one whole
    paged: int  # sequences, when each holds the blocks it needs
    reserved: int  # sequences, when each holds one contiguous run as long as the context


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The division of a device's memory, in bytes, and what fits in the part left to the KV cache."""

    memory_bytes: int
    weights_bytes: int  # a draft model's included
    draft_weights_bytes: int  # 0 without one
    activation_bytes: int  # reserved for one step's intermediate results
    kv_cache_bytes: int  # what is left, 0 when nothing is
    kv_bytes_per_token: int  # of the model alone
    kv_bytes_per_token_without_gqa: int  # the same with a KV head for each query head
    draft_kv_bytes_per_token: int  # of a draft model, in the type of the weights
    num_groups: int  # of layers with a block table each
    block_bytes: int  # of a group's layers, and a draft model's share
    num_blocks: int
    capacity_tokens: int  # while nothing slides out of windows
    fits: tuple[SequenceFit, ...]  # at the context, and at a quarter of it

    @property
    def weights_fit(self) -> bool:
        """Whether the weights alone leave any memory."""
        return self.weights_bytes < self.memory_bytes


def like_layers(num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[AttentionLayer, ...]:
    """Return the layers of a model whose layers are all alike, and see everything."""
    return tuple(AttentionLayer(num_heads, num_kv_heads, head_dim, None, index) for index in range(num_layers))


def _check_positive(values: Mapping[str, int]) -> None:
    for field, value in values.items():
        if value < 1:
            raise ValueError(f"{field} is {value}; it must be at least 1")


def kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int, scale_bytes: int = 0
) -> int:
    """Return the bytes that one token's keys and values take in all layers, with their scales."""
    return 2 * num_layers * num_kv_heads * (head_dim * element_bytes + scale_bytes)


def weights_bytes(num_parameters: int, weight_bits: int) -> int:
    """Return the bytes of the weights; the scales of a quantized format come on top of them."""
    return math.ceil(num_parameters * weight_bits / 8)


def held_bytes(shape: ModelShape, deployment: Deployment) -> int:
    """Return the bytes of a model's weights as they are held, with an estimate of their scales."""
    if deployment.linear_bits is None:
        return weights_bytes(shape.num_parameters, deployment.weight_bits)
    embedding = min(shape.vocab_size * shape.hidden_size, shape.num_parameters)
    split = shape.split or ParameterSplit(shape.num_parameters - embedding, embedding)
    scales = split.linear // shape.hidden_size * OUTPUT_BYTES
    return (
        weights_bytes(split.linear, deployment.linear_bits)
        + weights_bytes(split.other, deployment.weight_bits)
        + scales
    )


def activation_bytes(shape: ModelShape, token_budget: int, max_num_seqs: int) -> int:
    """Return an estimate of the bytes that one step needs beside weights and KV cache."""
    hidden = token_budget * shape.hidden_size * ACTIVATION_VECTORS * ACTIVATION_ELEMENT_BYTES
    logits = max_num_seqs * shape.vocab_size * LOGITS_ELEMENT_BYTES
    return hidden + logits


@dataclass(frozen=True, slots=True)
class _Cache:
    """How one model's keys and values lie in blocks."""

    layout: KVLayout
    token_bytes: int  # of one token in all layers that have K and V of their own
    token_bytes_without_gqa: int  # the same with a KV head for each query head
    block_bytes: int  # of one group's layers
    block_size: int

    def blocks_of(self, num_tokens: int) -> int:
        """Return the blocks that a sequence holds at most while it decodes."""
        return sum(most_held(group.window, num_tokens, 1, self.block_size) for group in self.layout.groups)


def _cache_of(shape: ModelShape, deployment: Deployment, element_bytes: int, scale_bytes: int) -> _Cache:
    layout = KVLayout(shape.layers, groups_of(shape.layers, shape.max_model_len or deployment.context))
    own = [layer for index, layer in enumerate(shape.layers) if layer.source == index]
    sizes = [kv_bytes_per_token(1, layer.num_kv_heads, layer.head_dim, element_bytes, scale_bytes) for layer in own]
    without = sum(size * layer.num_heads // layer.num_kv_heads for size, layer in zip(sizes, own, strict=True))
    size = deployment.block_size
    return _Cache(layout, sum(sizes), without, layout.bytes_per_slot(element_bytes, scale_bytes) * size, size)


def plan_memory(shape: ModelShape, deployment: Deployment, draft: ModelShape | None = None) -> MemoryPlan:
    """Return what fits. Weights too large for the memory give a plan without blocks, see `MemoryPlan.weights_fit`.

    A draft model has its weights beside the model's, and blocks for as many sequences at the context limit, whose
    elements have the weights' type.
    """
    caches = [_cache_of(shape, deployment, deployment.kv_element_bytes, deployment.kv_scale_bytes)]
    draft_weights = 0
    if draft is not None:
        caches.append(_cache_of(draft, deployment, max(2, deployment.weight_bits // 8), 0))
        draft_weights = held_bytes(draft, deployment)
    own, *others = caches
    whole = own.blocks_of(deployment.context)
    draft_bytes = sum(cache.block_bytes * cache.blocks_of(deployment.context) for cache in others)
    block_bytes = own.block_bytes + -(-draft_bytes // whole)
    weights = held_bytes(shape, deployment) + draft_weights
    activations = activation_bytes(shape, deployment.token_budget, deployment.max_num_seqs)
    left = max(0, deployment.memory_bytes - weights - activations)
    num_blocks = left // block_bytes
    lengths = (deployment.context, max(1, deployment.context // 4))
    return MemoryPlan(
        memory_bytes=deployment.memory_bytes,
        weights_bytes=weights,
        draft_weights_bytes=draft_weights,
        activation_bytes=activations,
        kv_cache_bytes=left,
        kv_bytes_per_token=own.token_bytes,
        kv_bytes_per_token_without_gqa=own.token_bytes_without_gqa,
        draft_kv_bytes_per_token=sum(cache.token_bytes for cache in others),
        num_groups=len(own.layout.groups),
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        capacity_tokens=num_blocks // len(own.layout.groups) * deployment.block_size,
        fits=tuple(_fit(tokens, deployment, caches, left) for tokens in lengths),
    )


def _fit(tokens: int, deployment: Deployment, caches: list[_Cache], kv_cache_bytes: int) -> SequenceFit:
    kv_bytes = sum(cache.block_bytes * cache.blocks_of(tokens) for cache in caches)
    return SequenceFit(
        tokens=tokens,
        kv_bytes=kv_bytes,
        paged=kv_cache_bytes // kv_bytes,
        reserved=kv_cache_bytes // (sum(cache.token_bytes for cache in caches) * deployment.context),
    )
