"""Merging partial attention results by their log-sum-exp, in Triton. Not run on a GPU; see `triton_attention`."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_plan import Merges

PARTS_AT_A_TIME = 8
NUM_WARPS = 2


def merge_parts(output: Tensor, part_outputs: Tensor, part_lse: Tensor, merges: Merges, sinks: Tensor | None) -> None:
    """Write the rows of `output` that have parts. Shapes as in `kernels.reference.merge_parts`; all contiguous."""
    num_heads, head_dim = output.shape[1:]
    merge_query[(len(merges.tokens), num_heads)](
        output,
        part_outputs,
        part_lse,
        sinks,
        merges.tokens,
        merges.starts,
        merges.parts,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        PARTS_AT_A_TIME=PARTS_AT_A_TIME,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )


@triton.jit  # type: ignore[untyped-decorator]
def merge_query(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_tokens, NUM_HEADS, HEAD_DIM]
    part_ptr,  # [num_parts, NUM_HEADS, HEAD_DIM], float32
    part_lse_ptr,  # [num_parts, NUM_HEADS], float32, in powers of two
    sinks_ptr,  # [NUM_HEADS] or None
    tokens_ptr,  # [num_merged]
    starts_ptr,  # [num_merged + 1]
    parts_ptr,  # [num_parts]
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PARTS_AT_A_TIME: tl.constexpr,
):
    """Merge one head of one query; one that has no parts is left as it is. Grid: [num_merged, NUM_HEADS]."""
    merged = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(starts_ptr + merged)
    stop = tl.load(starts_ptr + merged + 1)
    dims = tl.arange(0, PADDED_DIM)
    if sinks_ptr is not None:
        greatest = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        weight_sum = tl.full([], 1.0, tl.float32)
    else:
        greatest = tl.full([], float("-inf"), tl.float32)
        weight_sum = tl.full([], 0.0, tl.float32)
    total = tl.zeros([PADDED_DIM], tl.float32)
    for start in range(first, stop, PARTS_AT_A_TIME):
        places = start + tl.arange(0, PARTS_AT_A_TIME)
        is_part = places < stop
        rows = tl.load(parts_ptr + places, mask=is_part, other=0).to(tl.int64) * NUM_HEADS + head
        lse = tl.load(part_lse_ptr + rows, mask=is_part, other=float("-inf"))
        new_greatest = tl.maximum(greatest, tl.max(lse, 0))
        reference = tl.where(new_greatest == float("-inf"), 0.0, new_greatest)
        weights = tl.exp2(lse - reference)
        correction = tl.exp2(greatest - reference)
        mask = is_part[:, None] & (dims < HEAD_DIM)[None, :]
        outputs = tl.load(part_ptr + rows[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        total = total * correction + tl.sum(weights[:, None] * outputs, 0)
        weight_sum = weight_sum * correction + tl.sum(weights, 0)
        greatest = new_greatest
    token = tl.load(tokens_ptr + merged).to(tl.int64)
    num_written = tl.where(first < stop, HEAD_DIM, 0)
    result = (total / tl.where(first < stop, weight_sum, 1.0)).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + (token * NUM_HEADS + head) * HEAD_DIM + dims, result, mask=dims < num_written)
