"""Caches of one byte an element in Triton: storing and attending, against their oracles."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import reference, triton_attention, triton_cache
from kernels.kv_scales import KVScales
from kernels.score_rules import ScoreRules
from kernels.triton_plan import SplitRule, plan_attention
from tests.kernels.cases import LAYOUTS, Heads
from tests.kernels.quantised import QuantisedCase, quantised_case
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
DTYPES = [torch.int8, torch.float8_e4m3fn]
# The interpreter rounds to fp8 wrongly (124.75 to 64); reading it is right.
STORED_DTYPES = DTYPES if DEVICE.type == "cuda" else [torch.int8]
WHOLE = SplitRule(num_programs=1, min_saved_keys=10**9)
PARTS = SplitRule(num_programs=10**6, min_part_keys=64, min_saved_keys=64)


def bytes_of(cache: Tensor) -> Tensor:
    return cache.view(torch.int8)


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", STORED_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_tokens", "num_kv_heads", "head_dim", "block_size"), [(1, 1, 32, 8), (7, 3, 80, 16), (3, 2, 256, 5)]
)
def test_stores_what_the_oracle_does(
    num_tokens: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, scale_dtype: torch.dtype
) -> None:
    torch.manual_seed(num_tokens)
    key, value = torch.randn(2, num_kv_heads, num_tokens, head_dim, dtype=torch.float16, device=DEVICE).transpose(1, 2)
    key[0, 0] = 0.0  # whose scale is 0
    slots = torch.randperm(4 * block_size)[:num_tokens].to(DEVICE)
    expected = torch.full((2, 4, block_size, num_kv_heads, head_dim), 3, dtype=torch.int8, device=DEVICE).view(dtype)
    scales = torch.full((2, 4, block_size, num_kv_heads), torch.nan, dtype=scale_dtype, device=DEVICE)
    found, found_scales = expected.clone(), scales.clone()
    reference.store_kv(key, value, expected[0], expected[1], slots, KVScales(scales[0], scales[1]))

    triton_cache.store_quantised_kv(key, value, found[0], found[1], slots, KVScales(found_scales[0], found_scales[1]))

    assert torch.equal(bytes_of(found), bytes_of(expected))
    torch.testing.assert_close(found_scales, scales, rtol=0, atol=0, equal_nan=True)


def check(case: QuantisedCase, rule: SplitRule = WHOLE) -> None:
    inner = case.case
    per_head = inner.query.shape[1] // inner.key_cache.shape[2]
    plan = plan_attention(inner.batch, per_head, inner.query.dtype, DEVICE, rule, inner.rules.window)
    arguments = (inner.query, inner.key_cache, inner.value_cache)
    expected = reference.paged_attention(*arguments, inner.batch, inner.rules, case.scales)
    assert expected.isfinite().all()
    found = triton_attention.paged_attention(*arguments, plan, inner.rules, case.scales)
    tolerance = 5e-3 if found.dtype is torch.float16 else 2e-5
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model_dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", ["mixed", "shared"])
def test_attends(layout: str, model_dtype: torch.dtype, dtype: torch.dtype) -> None:
    check(quantised_case(LAYOUTS[layout], Heads(6, 2, 80), 16, model_dtype, dtype, DEVICE), PARTS)


def test_attends_by_rules() -> None:
    case = quantised_case(LAYOUTS["mixed"], Heads(3, 1, 64), 8, torch.float16, torch.int8, DEVICE)
    slopes = torch.tensor([0.5, 0.1, 0.01], device=DEVICE)
    rules = ScoreRules(0.5, window=40, softcap=3.0, sinks=-slopes, slopes=slopes)
    check(replace(case, case=replace(case.case, rules=rules)))
