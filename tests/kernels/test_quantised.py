"""Caches of one byte an element on this machine's processor, against their oracles."""

import pytest
import torch
from torch import Tensor

from kernels import ops, reference
from kernels.kv_scales import KVScales, quantise, why_unsupported
from tests.kernels.cases import HEADS, LAYOUTS, blocks_apart
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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_blocks_that_lie_apart_are_read_as_any(dtype: torch.dtype) -> None:
    quantised = quantised_case(LAYOUTS["shared-by-decodes-and-chunks"], HEADS["gqa-64"], 16, torch.bfloat16, dtype, CPU)
    case, scales = quantised.case, quantised.scales
    plan = ops.plan_attention(case.batch, num_heads=9, num_kv_heads=3, dtype=case.query.dtype, device=CPU)
    caches = (case.key_cache, case.value_cache)
    apart = [blocks_apart(cache) for cache in caches]
    expected = ops.paged_attention(case.query, *caches, plan, case.rules, scales)
    assert torch.equal(ops.paged_attention(case.query, apart[0], apart[1], plan, case.rules, scales), expected)


@pytest.mark.parametrize(("dtype", "error"), [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 16 / 448)], ids=str)
def test_a_number_is_off_by_half_a_step_at_most(dtype: torch.dtype, error: float) -> None:
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 50)[:, None]
    numbers, scales = quantise(x, dtype, torch.float32)
    off = (numbers.float() * scales[:, None] - x).abs().amax(dim=1)
    assert (off <= x.abs().amax(dim=1) * error * 1.001).all()


def test_numbers_that_are_not_finite_are_not_hidden() -> None:
    x = torch.ones(3, 8)
    x[0, 3], x[1, 3] = torch.nan, torch.inf
    for dtype in DTYPES:
        _, scales = quantise(x, dtype, torch.bfloat16)
        assert scales.isfinite().tolist() == [False, False, True]


@pytest.mark.parametrize("model_dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attends_in_narrow_types(dtype: torch.dtype, model_dtype: torch.dtype) -> None:
    quantised = quantised_case(LAYOUTS["shared-by-decodes-and-chunks"], HEADS["gqa-64"], 4, model_dtype, dtype, CPU)
    case = quantised.case
    arguments = (case.query, case.key_cache, case.value_cache)
    plan = ops.plan_attention(case.batch, num_heads=9, num_kv_heads=3, dtype=model_dtype, device=CPU)
    found = ops.paged_attention(*arguments, plan, case.rules, quantised.scales)
    expected = reference.paged_attention(*arguments, case.batch, case.rules, quantised.scales)
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=0.03)
    # Products of large queries and unscaled numbers are beyond float16's range.
    assert ops.paged_attention(case.query * 1000, *arguments[1:], plan, case.rules, quantised.scales).isfinite().all()


def test_the_cpu_reads_every_type_of_cache() -> None:
    assert all(why_unsupported(CPU, dtype, 256) is None for dtype in (*DTYPES, torch.bfloat16))
    assert why_unsupported(CPU, torch.int32, 64) == "torch.int32 is no type of a cache"


@pytest.mark.parametrize(
    ("capability", "dtype", "head_dim", "reason"),
    [
        ((9, 0), torch.float8_e4m3fn, 128, None),
        ((8, 0), torch.int8, 64, None),
        ((8, 0), torch.float8_e4m3fn, 64, "the GPU has compute capability 8.0; fp8 needs 8.9"),
        ((9, 0), torch.int8, 256, "its heads are 256 wide; on a GPU at most 128 are possible"),
        ((8, 0), torch.bfloat16, 256, None),
    ],
)
def test_what_a_gpu_reads(
    capability: tuple[int, int], dtype: torch.dtype, head_dim: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert why_unsupported(torch.device("cuda"), dtype, head_dim) == reason
