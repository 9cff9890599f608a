"""Compiling one case for its target, as a launch on that GPU would, and reading what it needs."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import (
    triton_attention,
    triton_cache,
    triton_copy,
    triton_layer_parts,
    triton_merge,
    triton_rotary,
    triton_sampling,
)
from kernels.kv_scales import GREATEST
from scripts.kernel_checks.cases import DTYPES, TARGETS, Case, Form, Kernel

NUM_KV_HEADS = 8
WINDOW, SOFTCAP = 4096, 50.0
SCALAR_TYPES = {"scale": "fp32", "eps": "fp32"}  # of arguments that are neither pointers nor int32
POINTER_TYPES = {  # of those not to the model's dtype
    "part_ptr": "*fp32",
    "part_lse_ptr": "*fp32",
    "slopes_ptr": "*fp32",
    "key_scale_ptr": "*bf16",
    "value_scale_ptr": "*bf16",
    "slots_ptr": "*i64",
    "sources_ptr": "*i64",
    "targets_ptr": "*i64",
    "rows_ptr": "*i64",
    "scales_ptr": "*fp32",
    "top_ks_ptr": "*i64",
    "top_ps_ptr": "*fp64",
    "min_ps_ptr": "*fp64",
    "uniforms_ptr": "*fp64",
    **dict.fromkeys(("tiles_ptr", "tokens_ptr", "positions_ptr", "tables_ptr", "starts_ptr", "parts_ptr"), "*i32"),
}


CACHE_TYPES = {Form.INT8: "*i8", Form.FP8: "*fp8e4nv"}
CACHE_DTYPES = {Form.INT8: torch.int8, Form.FP8: torch.float8_e4m3fn}
ROW_SIZES = ("row_stride", "vocab_size")  # of logits: what a model makes them, not always multiples of 16
SCALE_STRIDES = ("scale_block_stride", "scale_slot_stride", "scale_head_stride")

Constants: TypeAlias = dict[str, int | float | None]
Launch: TypeAlias = tuple[Any, Constants, dict[str, int]]  # a function, its constants and Triton's options


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a compiled kernel needs."""

    registers: int  # a thread's
    spilled_bytes: int  # a thread's, in memory for want of registers
    shared_bytes: int


class CompileError(Exception):
    """A case that does not compile, with the compiler's last line."""


def compile_case(case: Case) -> Resources:
    """Compile a case. Raises CompileError."""
    target = TARGETS[case.target]
    function, constants, options = _launch(case)
    try:
        compiled = triton.compile(
            _source(function, constants, case),
            target=GPUTarget(target.backend, target.arch, target.warp_size),
            options={**options, "enable_fp_fusion": True},
        )
    except Exception as error:  # whatever a compiler's pass raises, it is this case that fails
        lines = str(error).strip().splitlines() or [""]
        raise CompileError(f"{type(error).__name__}: {lines[-1]}") from error
    read = _nvidia_resources if target.backend == "cuda" else _amd_resources
    return read(compiled)


def _launch(case: Case) -> Launch:
    """Return a case's function, its constants and Triton's options, as its launch in `kernels` gives them."""
    return LAUNCHES[case.kernel](case)


def _launch_attention(case: Case) -> Launch:
    dtype = DTYPES[case.dtype]
    shape = triton_attention.tile_shape_for(case.width, case.tile_rows, dtype, CACHE_DTYPES.get(case.form, dtype))
    has_rules = case.form not in (Form.PLAIN, Form.PARTS)
    constants = {
        "NUM_HEADS": NUM_KV_HEADS * case.queries_per_kv_head,
        "QUERIES_PER_KV_HEAD": case.queries_per_kv_head,
        "HEAD_DIM": case.width,
        "PADDED_DIM": shape.padded_dim,
        "BLOCK_SIZE": case.block_size,
        "TILE_ROWS": case.tile_rows,
        "TILE_KEYS": shape.num_keys,
        "WINDOW": WINDOW if has_rules else None,
        "SOFTCAP": SOFTCAP if has_rules else None,
    }
    if case.form is Form.PLAIN:
        constants |= dict.fromkeys(("part_ptr", "part_lse_ptr"))
    if case.form not in CACHE_TYPES:
        constants |= dict.fromkeys(("key_scale_ptr", "value_scale_ptr", *SCALE_STRIDES))
    if not has_rules:
        constants |= dict.fromkeys(("sinks_ptr", "slopes_ptr"))
    options = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    return triton_attention.attend_tile, constants, options


def _launch_store(case: Case) -> Launch:
    constants: Constants = {
        "NUM_ELEMENTS": NUM_KV_HEADS * case.width,
        "HEAD_DIM": case.width,
        "BLOCK_SIZE": case.block_size,
        "TILE_ELEMENTS": triton_cache.TILE_ELEMENTS,
    }
    return triton_cache.store_token, constants, {"num_warps": triton_cache.NUM_WARPS}


def _launch_quantise(case: Case) -> Launch:
    constants: Constants = {
        "HEAD_DIM": case.width,
        "PADDED_DIM": triton.next_power_of_2(case.width),
        "BLOCK_SIZE": case.block_size,
        "GREATEST": GREATEST[CACHE_DTYPES[case.form]],
    }
    return triton_cache.quantise_head, constants, {"num_warps": triton_cache.QUANTISE_NUM_WARPS}


def _launch_copy(case: Case) -> Launch:
    constants: Constants = {
        "NUM_ELEMENTS": case.block_size * NUM_KV_HEADS * case.width,
        "TILE_ELEMENTS": triton_copy.TILE_BYTES // DTYPES[case.dtype].itemsize,
    }
    return triton_copy.copy_tile, constants, {"num_warps": triton_copy.NUM_WARPS}


def _launch_merge(case: Case) -> Launch:
    constants: Constants = {
        "NUM_HEADS": NUM_KV_HEADS,
        "HEAD_DIM": case.width,
        "PADDED_DIM": triton.next_power_of_2(case.width),
        "PARTS_AT_A_TIME": triton_merge.PARTS_AT_A_TIME,
    }
    if case.form is Form.PLAIN:
        constants["sinks_ptr"] = None
    return triton_merge.merge_query, constants, {"num_warps": triton_merge.NUM_WARPS}


def _launch_norm(case: Case) -> Launch:
    tile_elements, num_warps = triton_layer_parts.norm_tile_for(case.width)
    constants: Constants = {"WIDTH": case.width, "TILE_ELEMENTS": tile_elements}
    if case.form is Form.PLAIN:
        constants |= dict.fromkeys(("sum_ptr", "residual_ptr"))
    return triton_layer_parts.normalise_row, constants, {"num_warps": num_warps}


def _launch_gate(case: Case) -> Launch:
    constants: Constants = {"WIDTH": case.width, "TILE_ELEMENTS": triton_layer_parts.GATE_TILE_ELEMENTS}
    return triton_layer_parts.gate_row, constants, {"num_warps": triton_layer_parts.GATE_NUM_WARPS}


def _launch_rotate(case: Case) -> Launch:
    constants: Constants = {
        "NUM_HEADS": 4 * NUM_KV_HEADS,
        "NUM_KV_HEADS": NUM_KV_HEADS,
        "HALF_DIM": case.width // 2,
        "PADDED_HALF": triton.next_power_of_2(case.width // 2),
        "BLOCK_SIZE": case.block_size,
        "GREATEST": GREATEST[CACHE_DTYPES[case.form]] if case.form in CACHE_DTYPES else None,
    }
    if case.form not in CACHE_TYPES:
        constants |= dict.fromkeys(("key_scale_ptr", "value_scale_ptr", *SCALE_STRIDES))
    return triton_rotary.rotate_head, constants, {"num_warps": triton_rotary.NUM_WARPS}


def _launch_draw(case: Case) -> Launch:
    constants: Constants = {"TILE_ELEMENTS": triton_sampling.TILE_ELEMENTS}
    return triton_sampling.draw_row, constants, {"num_warps": triton_sampling.NUM_WARPS}


LAUNCHES: dict[Kernel, Callable[[Case], Launch]] = {
    Kernel.ATTEND_TILE: _launch_attention,
    Kernel.MERGE_QUERY: _launch_merge,
    Kernel.STORE_TOKEN: _launch_store,
    Kernel.QUANTISE_HEAD: _launch_quantise,
    Kernel.COPY_TILE: _launch_copy,
    Kernel.NORMALISE_ROW: _launch_norm,
    Kernel.GATE_ROW: _launch_gate,
    Kernel.ROTATE_HEAD: _launch_rotate,
    Kernel.DRAW_ROW: _launch_draw,
}


def _source(function: Any, constants: Constants, case: Case) -> ASTSource:
    """Return a kernel with its arguments' types, pointers and strides being multiples of 16 as in a launch."""
    signature = {}
    attributes = {}
    for index, parameter in enumerate(function.params):
        name = parameter.name
        if name in constants:  # a constant, or a pointer that is not given
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = _pointer_type(name, case)
        else:
            signature[name] = SCALAR_TYPES.get(name, "i32")
        divides = name not in ROW_SIZES or case.width % 16 == 0
        if signature[name].startswith(("*", "i")) and divides and not parameter.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(function, signature, constexprs=constants, attrs=attributes)


def _pointer_type(name: str, case: Case) -> str:
    is_cache = name in ("key_cache_ptr", "value_cache_ptr")
    is_cache |= case.kernel is Kernel.ATTEND_TILE and name in ("key_ptr", "value_ptr")
    if is_cache and case.form in CACHE_TYPES:
        return CACHE_TYPES[case.form]
    if case.kernel is Kernel.DRAW_ROW and name == "tokens_ptr":
        return "*i64"
    return POINTER_TYPES.get(name, f"*{case.dtype}")


def _nvidia_resources(compiled: Any) -> Resources:
    """Read a cubin with the cuobjdump that Triton carries. Triton's kernels have no stack but what is spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage))
    return Resources(int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"]), compiled.metadata.shared)


def _amd_resources(compiled: Any) -> Resources:
    """Read the metadata at the end of AMD's assembly. Its registers are the vector ones.

    Scalar registers are spilled into lanes of vector registers, not to memory, and so are none of what is counted.
    """
    pattern = r"\.(vgpr_count|vgpr_spill_count|private_segment_fixed_size):\s+(\d+)"
    found = {name: int(value) for name, value in re.findall(pattern, compiled.asm["amdgcn"])}
    spilled_bytes = max(4 * found["vgpr_spill_count"], found["private_segment_fixed_size"])
    return Resources(found["vgpr_count"], spilled_bytes, compiled.metadata.shared)
