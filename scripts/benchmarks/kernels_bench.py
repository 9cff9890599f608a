"""`scripts/bench kernels`: each kernel of this machine's device beside what it replaces, on the same inputs."""

import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

from engine.linears import NativeLinear, PackedLinear
from kernels import ops
from kernels.native.building import NativeBuild
from kernels.native.library import AttentionHeads, NativeKernels
from kernels.native.planning import plan_step
from kernels.native.tiles import TiledMatrix, struct_of_cache, tiled_keys, tiled_values
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from scripts.gpu_checks.benchmark import BLOCK_SIZE, decodes, measure
from scripts.gpu_checks.parts_benchmark import measure_parts

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64  # SmolLM2-135M's
HIDDEN, INTERMEDIATE, LAYERS = 576, 1_536, 30
ROWS, CHUNK = 32, 512
COMPILE_SECONDS = 120.0
WARM_UPS, REPETITIONS = 5, 50
COPIED_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel: medians in microseconds. `gb_s` is what it reads and writes at least, over its time."""

    kernel: str
    us: float
    replaced_us: float
    gb_s: float

    @property
    def speedup(self) -> float:
        return self.replaced_us / self.us


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kernels(as_json: bool) -> None:
    """Kernels beside what they replace: on a CPU the C ones beside torch's operators, in bfloat16; on a GPU the Triton
    ones, as in scripts/gpu-check.

    \b
    Example:
      scripts/bench kernels
    """
    if torch.cuda.is_available():
        device = torch.device("cuda")
        print(json.dumps(measure(device) | measure_parts(device), indent=2))
        return
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        native = NativeBuild(Path(folder)).wait(COMPILE_SECONDS)
        if native is None:
            raise click.ClickException(
                "no C kernels: this processor has no AVX-512 bfloat16, or there is no C compiler"
            )
        timings = list(_timings(native))
        copied = torch.empty(COPIED_BYTES, dtype=torch.uint8)
        target = torch.empty_like(copied)
        copy_gb_s = 2 * COPIED_BYTES / _time_us(lambda: target.copy_(copied)) / 1e3
    _report(timings, copy_gb_s, as_json=as_json)


def _timings(native: NativeKernels) -> Iterator[Timing]:
    for rows in (1, ROWS, CHUNK):
        for name, depth, num_columns in (("gate and up", HIDDEN, 2 * INTERMEDIATE), ("down", INTERMEDIATE, HIDDEN)):
            yield _linear(native, f"{name}: {rows} rows, {depth} to {num_columns}", rows, depth, num_columns)
    chunk = (PagedSequence(range(CHUNK // BLOCK_SIZE), 0, CHUNK),)
    for name, sequences in {
        "32 decodes of 350 tokens": decodes(32, 350),
        "32 decodes, 4 documents of 768 by 8": _by_documents(4, 8, 768, 100),
        "4 decodes of 8,000 tokens": decodes(4, 8_000),
        "1 decode of 8,000 tokens": decodes(1, 8_000),
        f"a chunk of {CHUNK}": chunk,
    }.items():
        yield _attention(native, f"attention: {name}", sequences)


def _by_documents(num_documents: int, readers: int, shared_tokens: int, own_tokens: int) -> tuple[PagedSequence, ...]:
    """Return decodes in groups that share a document each."""
    one = decodes(readers, shared_tokens + own_tokens, shared_tokens)
    blocks = 1 + max(max(sequence.block_ids) for sequence in one)
    return tuple(
        PagedSequence([index * blocks + block for block in sequence.block_ids], sequence.num_context, 1)
        for index in range(num_documents)
        for sequence in one
    )


def _attention(native: NativeKernels, name: str, sequences: tuple[PagedSequence, ...]) -> Timing:
    num_blocks = 1 + max(max(sequence.block_ids) for sequence in sequences)
    memory = torch.randn(2, NUM_KV_HEADS, num_blocks, BLOCK_SIZE, HEAD_DIM).bfloat16()
    key_cache, value_cache = memory.permute(0, 2, 3, 1, 4)
    query = torch.randn(sum(sequence.num_new for sequence in sequences), NUM_HEADS, HEAD_DIM).bfloat16()
    rules, batch = ScoreRules(HEAD_DIM**-0.5), PagedBatch(sequences, BLOCK_SIZE)
    by_torch = ops.plan_attention(
        batch,
        num_heads=NUM_HEADS,
        num_kv_heads=NUM_KV_HEADS,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
    )
    keys, values = tiled_keys(key_cache), tiled_values(value_cache)
    plan = plan_step(batch, NUM_HEADS // NUM_KV_HEADS, None, is_invariant=False)
    heads = AttentionHeads.of(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, rules)
    # Each block once, whoever shares it.
    num_read = len({block for sequence in sequences for block in sequence.block_ids})
    return _compared(
        name,
        partial(native.attention, query, struct_of_cache(keys, values, HEAD_DIM), plan, heads),
        lambda: ops.paged_attention(query, key_cache, value_cache, by_torch, rules),
        num_read * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM * 2 * 2,
    )


def _linear(native: NativeKernels, name: str, num_rows: int, depth: int, num_columns: int) -> Timing:
    """Many layers in turn, since a model's weights do not stay in the processor's cache."""
    weights = [torch.randn(num_columns, depth).bfloat16() for _ in range(LAYERS)]
    x = torch.randn(num_rows, depth).bfloat16()
    layers = [NativeLinear(native, TiledMatrix.of(weight, None)) for weight in weights]
    packed = [PackedLinear(weight, None) for weight in weights]
    num_bytes = LAYERS * 2 * (num_columns * depth + num_rows * (depth + num_columns))
    return _compared(name, lambda: [layer(x) for layer in layers], lambda: [layer(x) for layer in packed], num_bytes)


def _compared(name: str, ours: Callable[[], object], theirs: Callable[[], object], num_bytes: int) -> Timing:
    us = _time_us(ours)
    return Timing(name, us, _time_us(theirs), num_bytes / us / 1e3)


def _time_us(call: Callable[[], object]) -> float:
    times = []
    for index in range(WARM_UPS + REPETITIONS):
        started = time.perf_counter()
        call()
        if index >= WARM_UPS:
            times.append(time.perf_counter() - started)
    return 1e6 * median(times)


def _report(timings: list[Timing], copy_gb_s: float, *, as_json: bool) -> None:
    if as_json:
        for timing in timings:
            print(json.dumps(asdict(timing) | {"speedup": timing.speedup, "copy_gb_s": copy_gb_s}))
        return
    table = Table("kernel", "us", "torch's operators, us", "times", "GB/s")
    for timing in timings:
        table.add_row(
            timing.kernel,
            f"{timing.us:,.0f}",
            f"{timing.replaced_us:,.0f}",
            f"{timing.speedup:.1f}",
            f"{timing.gb_s:.1f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"a copy reads and writes {copy_gb_s:.1f} GB/s; {platform.machine()}, {torch.get_num_threads()} threads; "
        f"torch {torch.__version__}"
    )
