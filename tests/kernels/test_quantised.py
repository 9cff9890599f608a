"""Caches of one byte an element on this machine's processor, against their oracles."""

import pytest
import torch
from torch import Tensor

from kernels import ops, reference
from kernels.kv_scales import KVScales, quantise, supports
from tests.kernels.cases import HEADS, LAYOUTS
from tests.kernels.quantised import quantised_case

CPU = torch.device("cpu")
DTYPES = [torch.int8, torch.float8_e4m3fn]


def caches(block_size: int, dtype: torch.dtype, scale_dtype: torch.dtype) -> tuple[Tensor, KVScales]:
    numbers = torch.full((2, 9, block_size, 3, 40), 77, dtype=torch.int8).view(dtype)
    key_scales, value_scales = torch.full((2, 9, block_size, 3), torch.nan, dtype=scale_dtype)
    return numbers, KVScales(key_scales, value_scales)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 16])
def test_stores_what_the_oracle_does(block_size: int, dtype: torch.dtype, scale_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 3, 7, 40, generator=generator).bfloat16().transpose(1, 2)
    key[2, 1] = 0.0
    slots = torch.randperm(9 * block_size, generator=generator)[:7]
    (found, found_scales), (expected, scales) = (caches(block_size, dtype, scale_dtype) for _ in range(2))
    ops.store_kv(key, value, found[0], found[1], slots, found_scales)
    reference.store_kv(key, value, expected[0], expected[1], slots, scales)
    assert torch.equal(found.view(torch.int8), expected.view(torch.int8))
    torch.testing.assert_close(found_scales.key, scales.key, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found_scales.value, scales.value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attends_as_the_oracle_does(layout: str, dtype: torch.dtype) -> None:
    quantised = quantised_case(LAYOUTS[layout], HEADS["gqa-64"], 4, torch.float32, dtype, CPU)
    case = quantised.case
    arguments = (case.query, case.key_cache, case.value_cache)
    plan = ops.plan_attention(case.batch, num_heads=9, num_kv_heads=3, dtype=case.query.dtype, device=CPU)
    found = ops.paged_attention(*arguments, plan, case.rules, quantised.scales)
    expected = reference.paged_attention(*arguments, case.batch, case.rules, quantised.scales)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("dtype", "error"), [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 16 / 448)], ids=str)
def test_a_number_is_off_by_half_a_step_at_most(dtype: torch.dtype, error: float) -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 50)[:, None]
    numbers, scales = quantise(x, dtype, torch.float32)
    off = (numbers.float() * scales[:, None] - x).abs().amax(dim=1)
    assert (off <= x.abs().amax(dim=1) * error * 1.001).all()


def test_the_cpu_reads_every_type_of_cache() -> None:
    assert all(supports(CPU, dtype) for dtype in (*DTYPES, torch.bfloat16))
    assert not supports(CPU, torch.int32)
