"""What articles on serving language models claim, and what there is to say to each: those that are arithmetic here."""

from dataclasses import dataclass

from engine.plan import Deployment, MemoryPlan, ModelShape, kv_bytes_per_token, like_layers, plan_memory, weights_bytes

GIB = 2**30
# An 8B model of the Llama 3 kind, and a 70B one: the sizes that the claims are about.
LLAMA_8B = ModelShape(
    layers=like_layers(32, num_heads=32, num_kv_heads=8, head_dim=128),
    hidden_size=4_096,
    vocab_size=128_256,
    num_parameters=8_030_000_000,
)
LLAMA_70B = ModelShape(
    layers=like_layers(80, num_heads=64, num_kv_heads=8, head_dim=128),
    hidden_size=8_192,
    vocab_size=128_256,
    num_parameters=70_600_000_000,
)
HALF_BITS, QUARTER_BITS = 16, 4
KV_BYTES = 2  # an element
CONTEXT = 2_048


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim beside what was found. `ratio` is how many times better, as the claim counts it."""

    name: str
    claimed: str
    claimed_ratio: float | None
    ratio: float | None
    found: str  # our figures, with their units
    remark: str = ""  # where the claim is wrong, or what differs


def computed_claims() -> tuple[Claim, ...]:
    """Return the claims that follow from a model's shape."""
    return (_reserved(), _grouped_queries(), _formulas(), _four_bits(), _two_devices(), _seventy_billion())


def _deployment(memory_gib: float, weight_bits: int) -> Deployment:
    return Deployment(
        memory_bytes=int(memory_gib * GIB), weight_bits=weight_bits, kv_element_bytes=KV_BYTES, context=CONTEXT
    )


def _plan(shape: ModelShape, memory_gib: float, weight_bits: int) -> MemoryPlan:
    return plan_memory(shape, _deployment(memory_gib, weight_bits))


def _reserved() -> Claim:
    quarter = _plan(LLAMA_8B, 24, HALF_BITS).fits[1]
    return Claim(
        "KV memory: paged against reserved to the context",
        "8x, sequences of 512 in a context of 2,048",
        8.0,
        quarter.paged / quarter.reserved,
        f"{quarter.paged} against {quarter.reserved} sequences of {quarter.tokens} tokens (8B, bf16, 24 GiB)",
        "a quarter full is 4x: the article leaves the bytes per element out of one side, so its batch of 22 is 11",
    )


def _grouped_queries() -> Claim:
    all_heads = kv_bytes_per_token(80, 64, 128, KV_BYTES)
    grouped = kv_bytes_per_token(80, 8, 128, KV_BYTES)
    return Claim(
        "Grouped queries: 64 heads on 8 KV heads",
        "8x smaller KV",
        8.0,
        all_heads / grouped,
        f"{all_heads:,} and {grouped:,} bytes a token",
    )


def _formulas() -> Claim:
    """M_KV = 2 L n d b, and M_paged = ceil(n / p) p d 2 L, with b bytes an element and d of all KV heads together."""
    tokens, block_size = 500, 16
    num_layers, layer = len(LLAMA_8B.layers), LLAMA_8B.layers[0]
    heads_dim = layer.num_kv_heads * layer.head_dim
    exact = 2 * num_layers * tokens * heads_dim * KV_BYTES
    blocks = -(-tokens // block_size)
    paged = blocks * block_size * heads_dim * 2 * num_layers * KV_BYTES
    planned = blocks * _plan(LLAMA_8B, 24, HALF_BITS).block_bytes
    remark = "the paged formula lacks b, the bytes per element" if planned == paged else "our plan differs"
    return Claim(
        "KV formulas, 500 tokens in blocks of 16",
        "2 L n d b, and ceil(n/p) p d 2 L",
        None,
        planned / exact,
        f"{exact:,} bytes exact, {planned:,} in blocks",
        remark,
    )


def _four_bits() -> Claim:
    half, quarter = (_plan(LLAMA_8B, 24, bits) for bits in (HALF_BITS, QUARTER_BITS))
    return Claim(
        "4-bit weights: room for KV",
        "capacity",
        None,
        quarter.capacity_tokens / half.capacity_tokens,
        f"{quarter.capacity_tokens:,} against {half.capacity_tokens:,} tokens (8B, 24 GiB)",
        "scales and zero points come on top of the weights",
    )


def _two_devices() -> Claim:
    one, two = (_plan(LLAMA_8B, memory, HALF_BITS) for memory in (24, 48))
    return Claim(
        "Two GPUs: batch",
        "2x",
        2.0,
        two.capacity_tokens / one.capacity_tokens,
        f"{two.capacity_tokens:,} against {one.capacity_tokens:,} tokens (8B, bf16, 24 GiB each)",
        "more than twice with the weights split between them; exactly twice with a whole model on each",
    )


def _seventy_billion() -> Claim:
    needed = weights_bytes(LLAMA_70B.num_parameters, QUARTER_BITS)
    plan = _plan(LLAMA_70B, 24, QUARTER_BITS)
    found = f"weights alone {needed / 1e9:.1f} GB; room for {plan.capacity_tokens:,} tokens"
    return Claim("70B at 4 bits in 24 GB", "fits", None, None, found, "" if plan.weights_fit else "it does not fit")
