"""What fits in a device's memory: plain arithmetic over a model's shape, no model and no torch needed.

KV bytes a token are 2 * layers * KV heads * (head dimension * bytes an element + bytes of a scale): one key and one
value in each layer, and a scale for each where they are quantised.
Only KV heads count, so grouped-query attention shrinks the cache by query heads / KV heads.
"""

import math
from dataclasses import dataclass

# Hidden-sized vectors that one token of a step keeps alive at once: residual, norm, query, key, value, attention
# output, and the two halves of a feed-forward layer that is about four times as wide.
ACTIVATION_VECTORS = 16
LOGITS_ELEMENT_BYTES = 4  # logits are float32
ACTIVATION_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The numbers of a decoder model that decide its memory.

    Raises ValueError, naming the field, for one out of range.
    """

    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    num_parameters: int

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field} is {value}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads}; it must be a multiple of num_kv_heads ({self.num_kv_heads})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Where and how a model would run.

    Raises ValueError, naming the field, for a value out of range.
    """

    memory_bytes: int
    weight_bits: int  # bits a parameter
    kv_element_bytes: int
    kv_scale_bytes: int = 0  # of the scale that each token and KV head of a quantised cache has, K's and V's each
    context: int  # tokens, prompt and output together
    block_size: int = 16  # tokens a block
    token_budget: int = 2048  # tokens a step may compute
    max_num_seqs: int = 64  # requests that may share a step

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value, least = getattr(self, field), int(field != "kv_scale_bytes")
            if value < least:
                raise ValueError(f"{field} is {value}; it must be at least {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceFit:
    """How many sequences of one length fit at once."""

    tokens: int  # length of each sequence
    kv_bytes: int  # one sequence's blocks, the last one whole
    paged: int  # sequences, when each holds the blocks it needs
    reserved: int  # sequences, when each holds one contiguous run as long as the context


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The division of a device's memory, in bytes, and what fits in the part left to the KV cache."""

    memory_bytes: int
    weights_bytes: int
    activation_bytes: int  # reserved for one step's intermediate results
    kv_cache_bytes: int  # what is left, 0 when nothing is
    kv_bytes_per_token: int
    kv_bytes_per_token_without_gqa: int  # the same with a KV head for each query head
    block_bytes: int
    num_blocks: int
    capacity_tokens: int
    fits: tuple[SequenceFit, ...]  # at the context, and at a quarter of it

    @property
    def weights_fit(self) -> bool:
        """Whether the weights alone leave any memory."""
        return self.weights_bytes < self.memory_bytes


def kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int, scale_bytes: int = 0
) -> int:
    """Return the bytes that one token's keys and values take in all layers, with their scales."""
    return 2 * num_layers * num_kv_heads * (head_dim * element_bytes + scale_bytes)


def weights_bytes(num_parameters: int, weight_bits: int) -> int:
    """Return the bytes of the weights; the scales of a quantized format come on top of them."""
    return math.ceil(num_parameters * weight_bits / 8)


def activation_bytes(shape: ModelShape, token_budget: int, max_num_seqs: int) -> int:
    """Return an estimate of the bytes that one step needs beside weights and KV cache."""
    hidden = token_budget * shape.hidden_size * ACTIVATION_VECTORS * ACTIVATION_ELEMENT_BYTES
    logits = max_num_seqs * shape.vocab_size * LOGITS_ELEMENT_BYTES
    return hidden + logits


def plan_memory(shape: ModelShape, deployment: Deployment) -> MemoryPlan:
    """Return what fits. Weights too large for the memory give a plan without blocks, see `MemoryPlan.weights_fit`."""
    sizes = deployment.kv_element_bytes, deployment.kv_scale_bytes
    per_token = kv_bytes_per_token(shape.num_layers, shape.num_kv_heads, shape.head_dim, *sizes)
    block_bytes = per_token * deployment.block_size
    weights = weights_bytes(shape.num_parameters, deployment.weight_bits)
    activations = activation_bytes(shape, deployment.token_budget, deployment.max_num_seqs)
    left = max(0, deployment.memory_bytes - weights - activations)
    num_blocks = left // block_bytes
    lengths = (deployment.context, max(1, deployment.context // 4))
    return MemoryPlan(
        memory_bytes=deployment.memory_bytes,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_cache_bytes=left,
        kv_bytes_per_token=per_token,
        kv_bytes_per_token_without_gqa=per_token * shape.num_heads // shape.num_kv_heads,
        block_bytes=block_bytes,
        num_blocks=num_blocks,
        capacity_tokens=num_blocks * deployment.block_size,
        fits=tuple(_fit(tokens, deployment, per_token, left) for tokens in lengths),
    )


def _fit(tokens: int, deployment: Deployment, per_token: int, kv_cache_bytes: int) -> SequenceFit:
    block_bytes = per_token * deployment.block_size
    blocks = math.ceil(tokens / deployment.block_size)
    return SequenceFit(
        tokens=tokens,
        kv_bytes=blocks * block_bytes,
        paged=kv_cache_bytes // block_bytes // blocks,
        reserved=kv_cache_bytes // (per_token * deployment.context),
    )
