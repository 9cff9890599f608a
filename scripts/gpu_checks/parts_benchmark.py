"""A small benchmark of what stands beside attention on a GPU: the parts of a layer, draws, and a step by a CUDA graph.

Each beside torch's operators, or beside the step without a graph, on the same inputs in the same run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

from engine.fused import fuse
from engine.layer_replacing import fuse_layers
from engine.linears import Numerics
from engine.model_runner import ModelRunner
from engine.paged_model import PagedModel
from engine.probing import probe_request
from engine.step_plan import ScheduledRequest, SchedulerOutput
from kernels import ops
from kernels.draws import Draws
from scripts.gpu_checks.benchmark import BLOCK_SIZE, HEAD_DIM, NUM_HEADS, NUM_KV_HEADS, time_ms
from scripts.gpu_checks.steps_benchmark import measure_steps

ROWS = 32
HIDDEN, INTERMEDIATE, EPS = 4096, 14_336, 1e-5  # an 8B model's
VOCAB_SIZE = 128_256
NUM_SLOTS = 64 * BLOCK_SIZE
STEP_MODEL = LlamaConfig(  # of 1.2 billion parameters
    vocab_size=VOCAB_SIZE,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
STEP_REQUESTS, STEP_CONTEXT = 8, 500


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel, and what it replaces, on the same inputs."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]


def measure_parts(device: torch.device) -> dict[str, dict[str, float]]:
    """Return the figures; times in ms."""
    with torch.inference_mode():
        step_model = _step_model(device)
        return {pair.name: _compared(time_ms(pair.ours), time_ms(pair.theirs)) for pair in pairs(device)} | {
            "decode_step": _decode_step(step_model),
            "engine_step": measure_steps(step_model),
        }


def pairs(device: torch.device, rows: int = ROWS, dtype: torch.dtype = torch.bfloat16) -> Iterator[Pair]:
    """Yield the parts of a layer and the draw."""

    def random(*size: int) -> Tensor:
        return torch.randn(size, device=device, dtype=dtype)

    x, residual, weight = random(rows, HIDDEN), random(rows, HIDDEN), random(HIDDEN)
    yield Pair(
        "add_rms_norm",
        lambda: ops.add_rms_norm(x, residual, weight, EPS),
        lambda: functional.rms_norm(x + residual, (HIDDEN,), weight, EPS),
    )
    gate_up = random(rows, 2 * INTERMEDIATE)
    yield Pair(
        "silu_mul",
        lambda: ops.silu_mul(gate_up),
        lambda: functional.silu(gate_up[:, :INTERMEDIATE]) * gate_up[:, INTERMEDIATE:],
    )
    qkv, cos, sin = random(rows, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM), random(rows, HEAD_DIM), random(rows, HEAD_DIM)
    caches = random(2, NUM_SLOTS // BLOCK_SIZE, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    slots = torch.randperm(NUM_SLOTS)[:rows].to(device)
    yield Pair(
        "rotate_and_store",
        lambda: ops.rotate_and_store(qkv, NUM_HEADS, cos, sin, caches[0], caches[1], slots),
        lambda: rotate_and_store(qkv, cos, sin, caches[0], caches[1], slots),
    )
    logits = torch.randn(rows, VOCAB_SIZE, device=device) * 3
    draws = draws_of(rows, device)
    yield Pair("draw", lambda: ops.draw(logits, draws), lambda: draw_by_sort(logits, draws))


def rotate_and_store(
    qkv: Tensor, cos: Tensor, sin: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> Tensor:
    """Store keys and values by torch's operators, and return the rotated queries."""
    num_rotated = NUM_HEADS + NUM_KV_HEADS
    plain, value = qkv[:, :num_rotated], qkv[:, num_rotated:]
    low, high = plain.chunk(2, dim=-1)
    rotated = plain * cos[:, None] + torch.cat((-high, low), dim=-1) * sin[:, None]
    key_cache.flatten(0, 1)[slots] = rotated[:, NUM_HEADS:]
    value_cache.flatten(0, 1)[slots] = value
    return rotated[:, :NUM_HEADS]


def draws_of(rows: int, device: torch.device) -> Draws:
    """Return draws of temperature 0.8 and top-p 0.9, one a row."""

    def column(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float64, device=device)

    uniforms = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
    zeros = torch.zeros(rows, dtype=torch.int64, device=device)
    return Draws(torch.arange(rows, device=device), column(0.8), zeros, column(0.9), column(0.0), uniforms)


def draw_by_sort(logits: Tensor, draws: Draws) -> Tensor:
    """Draw by temperature and top-p alone, by torch's operators."""
    kept, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = (kept.double() / draws.temperatures[:, None]).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    cumulative = probabilities.masked_fill_(before >= draws.top_ps[:, None], 0.0).cumsum(dim=-1)
    places = torch.searchsorted(cumulative, draws.uniforms[:, None] * cumulative[:, -1:], right=True)
    return token_ids.gather(1, places).squeeze(1)


def _step_model(device: torch.device) -> PagedModel:
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(STEP_MODEL, dtype=torch.bfloat16)
    paged = PagedModel(model)
    fuse(model, Numerics())
    fuse_layers(paged)
    return paged


def _decode_step(paged: PagedModel) -> dict[str, float]:
    """One step of a few decodes, sampling included, by a graph and without."""
    blocks_each = -(-STEP_CONTEXT // BLOCK_SIZE)
    plan = decode_plan(STEP_REQUESTS, STEP_CONTEXT)
    times = []
    for cuda_graphs in (True, False):
        runner = ModelRunner(paged, STEP_REQUESTS * blocks_each, BLOCK_SIZE, cuda_graphs=cuda_graphs)
        times.append(time_ms(lambda runner=runner: runner.launch(plan).results()))  # type: ignore[misc]
    return _compared(*times)


def decode_plan(num_requests: int, num_tokens: int) -> SchedulerOutput:
    """Return a step that decodes the last of so many tokens of each request."""
    blocks_each = -(-num_tokens // BLOCK_SIZE)
    shares = tuple(
        ScheduledRequest(
            probe_request([5] * num_tokens, range(index * blocks_each, (index + 1) * blocks_each)), num_tokens - 1, 1
        )
        for index in range(num_requests)
    )
    return SchedulerOutput(shares, num_requests, ())


def _compared(ms: float, replaced_ms: float) -> dict[str, float]:
    return {"ms": ms, "replaced_ms": replaced_ms, "speedup": replaced_ms / ms}
