"""What stands between a decoder layer's matrix products on a GPU, in Triton: norms and the gated activation.

Sums and exponentials are in float32; a row's result does not depend on the rows beside it. Not run on a GPU yet; see
`kernels.triton_attention`.
"""

import triton
import triton.language as tl
from torch import Tensor

NORM_TILE_ELEMENTS = 4096  # of a row that are in registers at once
ELEMENTS_PER_WARP = 512
MAX_NORM_WARPS = 8
GATE_TILE_ELEMENTS = 1024
GATE_NUM_WARPS = 4


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight over the last dimension. Shapes as in `kernels.reference.rms_norm`; all contiguous."""
    output = x.new_empty(x.shape)
    _launch_norm(x, None, weight, output, None, eps)
    return output


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the norm of x + residual, and the sum. Shapes as in `kernels.reference.add_rms_norm`; all contiguous."""
    output, summed = x.new_empty(x.shape), x.new_empty(x.shape)
    _launch_norm(x, residual, weight, output, summed, eps)
    return output, summed


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: [..., 2 * width] to [..., width]. gate_up is contiguous."""
    assert gate_up.is_contiguous()
    width = gate_up.shape[-1] // 2
    output = gate_up.new_empty(*gate_up.shape[:-1], width)
    num_rows = output.numel() // width
    gate_row[(num_rows, triton.cdiv(width, GATE_TILE_ELEMENTS))](
        output,
        gate_up,
        WIDTH=width,
        TILE_ELEMENTS=GATE_TILE_ELEMENTS,
        num_warps=GATE_NUM_WARPS,
        enable_fp_fusion=True,
    )
    return output


def norm_tile_for(width: int) -> tuple[int, int]:
    """Return the elements of a row that a program takes at a time, and its warps."""
    tile_elements = min(NORM_TILE_ELEMENTS, triton.next_power_of_2(width))
    return tile_elements, max(1, min(MAX_NORM_WARPS, tile_elements // ELEMENTS_PER_WARP))


def _launch_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, output: Tensor, summed: Tensor | None, eps: float
) -> None:
    assert x.is_contiguous()
    assert weight.is_contiguous()
    assert residual is None or (residual.is_contiguous() and residual.shape == x.shape)
    width = x.shape[-1]
    assert weight.shape == (width,)
    tile_elements, num_warps = norm_tile_for(width)
    normalise_row[(x.numel() // width,)](
        output,
        summed,
        x,
        residual,
        weight,
        eps,
        WIDTH=width,
        TILE_ELEMENTS=tile_elements,
        num_warps=num_warps,
        enable_fp_fusion=True,
    )


@triton.jit  # type: ignore[untyped-decorator]
def normalise_row(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_rows, WIDTH]
    sum_ptr,  # [num_rows, WIDTH], None where there is no residual
    x_ptr,  # [num_rows, WIDTH]
    residual_ptr,  # [num_rows, WIDTH] or None
    weight_ptr,  # [WIDTH]
    eps,
    WIDTH: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Normalise one row. Grid: [num_rows]. A row of one tile is read once, a longer one twice: inputs only, so that
    nothing is read that was written here."""
    row = tl.program_id(0).to(tl.int64) * WIDTH
    squares = tl.zeros([TILE_ELEMENTS], tl.float32)
    for start in range(0, WIDTH, TILE_ELEMENTS):
        elements = start + tl.arange(0, TILE_ELEMENTS)
        x = _load_sum(x_ptr, residual_ptr, row + elements, elements < WIDTH)
        squares += x * x
    factor = tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)
    for start in range(0, WIDTH, TILE_ELEMENTS):
        elements = start + tl.arange(0, TILE_ELEMENTS)
        mask = elements < WIDTH
        x = _load_sum(x_ptr, residual_ptr, row + elements, mask)
        weight = tl.load(weight_ptr + elements, mask=mask, other=0.0).to(tl.float32)
        tl.store(output_ptr + row + elements, (x * factor * weight).to(output_ptr.dtype.element_ty), mask=mask)
        if sum_ptr is not None:
            tl.store(sum_ptr + row + elements, x.to(sum_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _load_sum(x_ptr, residual_ptr, offsets, mask):  # type: ignore[no-untyped-def]
    """Return x, or x + residual rounded to their type, as float32."""
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        x += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    return x


@triton.jit  # type: ignore[untyped-decorator]
def gate_row(  # type: ignore[no-untyped-def]
    output_ptr,  # [num_rows, WIDTH]
    gate_up_ptr,  # [num_rows, 2 * WIDTH]: gate, then up
    WIDTH: tl.constexpr,
    TILE_ELEMENTS: tl.constexpr,
):
    """Compute TILE_ELEMENTS of silu(gate) * up: program (row, tile)."""
    row = tl.program_id(0).to(tl.int64)
    elements = tl.program_id(1) * TILE_ELEMENTS + tl.arange(0, TILE_ELEMENTS)
    mask = elements < WIDTH
    gate = tl.load(gate_up_ptr + row * (2 * WIDTH) + elements, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * (2 * WIDTH) + WIDTH + elements, mask=mask, other=0.0).to(tl.float32)
    gated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output_ptr + row * WIDTH + elements, gated.to(output_ptr.dtype.element_ty), mask=mask)
