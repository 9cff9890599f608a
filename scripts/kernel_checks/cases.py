"""What to compile: the targets, and the configurations of each kernel that the engine can choose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import torch

from kernels import kv_scales, triton_plan

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}  # by Triton's names
HEAD_DIMS = (64, 80, 128, 256)  # 80 is padded
ROW_WIDTHS = (576, 4096, 5376, 16384)  # the first is padded, the last two are more than a tile
VOCAB_SIZES = (128256, 50257)  # a multiple of 16 and none; the kernel is compiled for no size
BLOCK_SIZES = (16, 32)
QUERIES_PER_KV_HEAD = (1, 3, 4, 8)
CHUNK_TOKENS = 512  # a step's longest prefill chunk; any that fills a tile compiles alike


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU architecture to compile for."""

    backend: str
    arch: int | str
    warp_size: int
    shared_limit_bytes: int  # the most that one program may use
    has_fp8: bool = True


TARGETS = {
    "sm_80": Target("cuda", 80, 32, 163 * 1024, has_fp8=False),
    "sm_89": Target("cuda", 89, 32, 99 * 1024),
    "sm_90": Target("cuda", 90, 32, 227 * 1024),
    "sm_100": Target("cuda", 100, 32, 227 * 1024),
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024),
}


class Kernel(StrEnum):
    """The kernels, by their functions' names."""

    ATTEND_TILE = "attend_tile"
    MERGE_QUERY = "merge_query"
    STORE_TOKEN = "store_token"
    QUANTISE_HEAD = "quantise_head"
    COPY_TILE = "copy_tile"
    NORMALISE_ROW = "normalise_row"
    GATE_ROW = "gate_row"
    ROTATE_HEAD = "rotate_head"
    DRAW_ROW = "draw_row"


class Form(StrEnum):
    """What a kernel does beside its plain work; each leaves out what it is not asked for when it is compiled."""

    PLAIN = "plain"
    PARTS = "parts"  # some tiles write partial results
    RULES = "rules"  # and scores have window, softcap, sinks and slopes
    INT8 = "int8"  # and the caches are of int8
    FP8 = "fp8"
    ADD = "add"  # a norm adds the residual first


ATTENTION_FORMS = (Form.PLAIN, Form.PARTS, Form.RULES, Form.INT8, Form.FP8)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel in one configuration for one target."""

    target: str  # a key of TARGETS
    kernel: Kernel
    width: int  # elements of a head or, in kernels that know no heads, of a row
    block_size: int
    dtype: str  # a key of DTYPES
    queries_per_kv_head: int
    tile_rows: int
    form: Form = Form.PLAIN


def attention_cases(
    target: str, head_dim: int, block_size: int, dtype: str, queries_per_kv_head: int, forms: Sequence[Form]
) -> list[Case]:
    """Return the attention kernel's cases: the tiles of a step that only decodes, and of one with a chunk."""
    quantised = {Form.INT8, Form.FP8} if head_dim <= kv_scales.MAX_GPU_HEAD_DIM else set()
    if not TARGETS[target].has_fp8:
        quantised.discard(Form.FP8)
    forms = [form for form in forms if form in quantised or form not in (Form.INT8, Form.FP8)]
    tile_rows = {
        triton_plan.tile_rows_for(num_tokens * queries_per_kv_head, DTYPES[dtype]) for num_tokens in (1, CHUNK_TOKENS)
    }
    return [
        Case(target, Kernel.ATTEND_TILE, head_dim, block_size, dtype, queries_per_kv_head, rows, form)
        for rows in sorted(tile_rows)
        for form in forms
    ]


def store_case(target: str, head_dim: int, block_size: int, dtype: str) -> Case:
    """Return a case of the cache kernel, which knows neither query heads nor tiles of rows."""
    return Case(target, Kernel.STORE_TOKEN, head_dim, block_size, dtype, queries_per_kv_head=1, tile_rows=1)


def copy_case(target: str, head_dim: int, block_size: int, dtype: str) -> Case:
    """Return a case of the kernel that copies blocks, to which a block is so many bytes."""
    return Case(target, Kernel.COPY_TILE, head_dim, block_size, dtype, queries_per_kv_head=1, tile_rows=1)


def quantise_cases(target: str, head_dim: int, block_size: int, dtype: str) -> list[Case]:
    """Return the cases of the kernel that stores quantised K and V."""
    forms = (Form.INT8, Form.FP8) if TARGETS[target].has_fp8 else (Form.INT8,)
    return [Case(target, Kernel.QUANTISE_HEAD, head_dim, block_size, dtype, 1, 1, form) for form in forms]


def merge_cases(target: str, head_dim: int, dtype: str) -> list[Case]:
    """Return the cases of the kernel that merges parts, which sees no blocks; sinks are the one rule it knows."""
    return [Case(target, Kernel.MERGE_QUERY, head_dim, 1, dtype, 1, 1, form) for form in (Form.PLAIN, Form.RULES)]


def row_cases(target: str, width: int, dtype: str) -> list[Case]:
    """Return the cases of the kernels that do a row: the norm, with and without a residual, and the activation."""
    norms = [Case(target, Kernel.NORMALISE_ROW, width, 1, dtype, 1, 1, form) for form in (Form.PLAIN, Form.ADD)]
    return [*norms, Case(target, Kernel.GATE_ROW, width, 1, dtype, 1, 1)]


def rotate_cases(target: str, head_dim: int, block_size: int, dtype: str) -> list[Case]:
    """Return the cases of the kernel that rotates and stores, for each type of a cache."""
    forms = (Form.PLAIN, Form.INT8, Form.FP8) if TARGETS[target].has_fp8 else (Form.PLAIN, Form.INT8)
    return [Case(target, Kernel.ROTATE_HEAD, head_dim, block_size, dtype, 1, 1, form) for form in forms]


def draw_case(target: str, vocab_size: int) -> Case:
    """Return a case of the kernel that draws; logits are always float32."""
    return Case(target, Kernel.DRAW_ROW, vocab_size, 1, "fp32", queries_per_kv_head=1, tile_rows=1)


def representative_cases(target: str) -> Iterator[Case]:
    """Yield the cases that differ in what they need of a GPU: every tile shape, and both ways to mask a head."""
    for head_dim in (64, 128, 256):
        yield from attention_cases(target, head_dim, 16, "bf16", 4, (Form.PLAIN, Form.RULES, Form.INT8, Form.FP8))
    yield from attention_cases(target, 80, 32, "fp16", 3, (Form.PARTS, Form.INT8, Form.FP8))
    yield from attention_cases(target, 64, 16, "fp16", 3, (Form.INT8, Form.FP8))
    yield from attention_cases(target, 128, 16, "fp32", 3, (Form.INT8, Form.FP8))
    for head_dim in (64, 80, 128, 256):
        yield from attention_cases(target, head_dim, 16, "fp32", 1, (Form.PLAIN, Form.RULES))
    yield store_case(target, 64, 16, "bf16")
    yield store_case(target, 80, 32, "fp32")
    yield copy_case(target, 80, 32, "bf16")
    yield from merge_cases(target, 256, "bf16")
    yield from quantise_cases(target, 80, 16, "bf16")
    yield from row_cases(target, 576, "fp32")
    yield from row_cases(target, 5376, "bf16")
    yield from rotate_cases(target, 80, 16, "bf16")
    yield from rotate_cases(target, 256, 32, "fp32")
    for vocab_size in VOCAB_SIZES:
        yield draw_case(target, vocab_size)


def all_cases(target: str) -> Iterator[Case]:
    """Yield every combination of the values above."""
    for head_dim, block_size, dtype in product(HEAD_DIMS, BLOCK_SIZES, DTYPES):
        for queries_per_kv_head in QUERIES_PER_KV_HEAD:
            yield from attention_cases(target, head_dim, block_size, dtype, queries_per_kv_head, ATTENTION_FORMS)
        yield store_case(target, head_dim, block_size, dtype)
        yield copy_case(target, head_dim, block_size, dtype)
        yield from quantise_cases(target, head_dim, block_size, dtype)
        yield from rotate_cases(target, head_dim, block_size, dtype)
    for width, dtype in product(ROW_WIDTHS, DTYPES):
        yield from row_cases(target, width, dtype)
    for vocab_size in VOCAB_SIZES:
        yield draw_case(target, vocab_size)
    for head_dim, dtype in product(HEAD_DIMS, DTYPES):
        yield from merge_cases(target, head_dim, dtype)
