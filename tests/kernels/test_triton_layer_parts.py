"""Triton's norms and gated activation against their oracles."""

import pytest
import torch
from torch import Tensor

from kernels import reference, triton_layer_parts
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2**-6}  # of a result: two roundings
# The interpreter cuts bfloat16 off where it should round.
SUM_TOLERANCE = {dtype: 2**-7 if dtype is torch.bfloat16 and DEVICE.type == "cpu" else 0.0 for dtype in DTYPES}
WIDTHS = [1, 37, 576, 4096, 9001]  # the last in three tiles, the third not full


def random(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(size, dtype=torch.float32, device=DEVICE).to(dtype)


def poisoned(tensor: Tensor) -> Tensor:
    """Return a copy between elements that are NaN."""
    memory = torch.full((tensor.numel() + 64,), torch.nan, dtype=tensor.dtype, device=DEVICE)
    inner = memory[32 : 32 + tensor.numel()].view(tensor.shape)
    inner.copy_(tensor)
    return inner


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x, weight = poisoned(random(3, width, dtype=dtype)), poisoned(random(width, dtype=dtype))
    found = triton_layer_parts.rms_norm(x, weight, 1e-5)
    expected = reference.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_add_rms_norm(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    x, residual = poisoned(random(2, 2, width, dtype=dtype)), poisoned(random(2, 2, width, dtype=dtype) * 3)
    before = x.clone(), residual.clone()
    weight = random(width, dtype=torch.float32)  # some models keep their norms so
    found, found_sum = triton_layer_parts.add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_sum = reference.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(found_sum, expected_sum, rtol=SUM_TOLERANCE[dtype], atol=0)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=1e-6)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_zeros_stay_zeros() -> None:
    x, weight = torch.zeros(1, 48, device=DEVICE), torch.ones(48, device=DEVICE)
    assert torch.equal(triton_layer_parts.rms_norm(x, weight, 1e-6), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 37, 1536, 2049])
def test_silu_mul(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    gate_up = poisoned(random(3, 2, 2 * width, dtype=dtype) * 4)
    found = triton_layer_parts.silu_mul(gate_up)
    assert found.shape == (3, 2, width)
    torch.testing.assert_close(found, reference.silu_mul(gate_up), rtol=TOLERANCE[dtype], atol=1e-6)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # the interpreter's; it is meant
def test_silu_of_what_is_far_below_zero_is_zero() -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 2.0, 2.0]], device=DEVICE)
    assert triton_layer_parts.silu_mul(gate_up).tolist() == [[0.0, 2000.0]]


def test_a_row_does_not_depend_on_those_beside_it() -> None:
    torch.manual_seed(0)
    x, weight = random(7, 300, dtype=torch.bfloat16), random(300, dtype=torch.bfloat16)
    x[3] = torch.nan
    alone = triton_layer_parts.rms_norm(x[5:6], weight, 1e-5)
    assert torch.equal(triton_layer_parts.rms_norm(x, weight, 1e-5)[5:6], alone)
