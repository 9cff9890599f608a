"""The C kernels over caches of int8 and fp8 against their oracles."""

from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.kv_scales import GREATEST, KVScales, quantise
from kernels.native.library import AttentionHeads, NativeKernels
from kernels.native.planning import plan_step
from kernels.native.tiles import struct_of_cache, tiled_keys, tiled_values
from tests.kernels.cases import LAYOUTS, build_case
from tests.kernels.native_cases import HEADS, NATIVE_LAYOUTS, ROUNDING, RULES


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("layout", ["decodes", "mixed", "shared", "long chunk"])
@pytest.mark.parametrize("rules", ["softcap", "all", "plain"])
@pytest.mark.parametrize("heads", ["gqa-64", "mha-96", "mha-256"])
@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_quantised_attention(native: NativeKernels, dtype: torch.dtype, heads: str, rules: str, layout: str) -> None:
    case = build_case(NATIVE_LAYOUTS[layout], HEADS[heads], 16, torch.bfloat16)
    chosen = RULES.get(rules, case.rules)
    sinks, slopes = (None if x is None else x[: HEADS[heads].num_heads] for x in (chosen.sinks, chosen.slopes))
    case = replace(case, rules=replace(chosen, sinks=sinks, slopes=slopes))
    key_numbers, key_scales = quantise(case.key_cache, dtype, torch.bfloat16)
    value_numbers, value_scales = quantise(case.value_cache, dtype, torch.bfloat16)
    expected = reference.paged_attention(
        case.query, key_numbers, value_numbers, case.batch, case.rules, KVScales(key_scales, value_scales)
    )
    (num_heads, dim), num_kv_heads = case.query.shape[1:], case.key_cache.shape[2]
    keys, values = tiled_keys(key_numbers), tiled_values(value_numbers)
    heads_first = KVScales(*(x.permute(2, 0, 1).contiguous() for x in (key_scales, value_scales)))
    struct = struct_of_cache(keys, values, dim, heads_first)
    plan = plan_step(case.batch, num_heads // num_kv_heads, case.rules.window, is_invariant=False)
    of_heads = AttentionHeads.of(num_heads, num_kv_heads, dim, case.rules)
    found = native.attention(case.query, struct, plan, of_heads)
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-2)


@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_quantised_store(native: NativeKernels, dtype: torch.dtype) -> None:
    """To the bit as the reference: halves, the smallest numbers, zeros, and what is not finite."""
    num_tokens, num_kv_heads, dim = 20, 3, 64
    key, value = (torch.randn(2, num_tokens, num_kv_heads, dim) * torch.logspace(-9, 3, dim)).bfloat16()
    key[3], value[5, 1], key[6, 0, 2], value[7, 2, 63] = 0, 0, torch.nan, torch.inf
    key[8] = (torch.arange(dim) - 31.5).bfloat16()
    slots = torch.randperm(64)[:num_tokens]
    found = torch.zeros(2, num_kv_heads, 4, 16 * dim, dtype=torch.int8).view(dtype).transpose(1, 2)
    scales = KVScales(*torch.zeros(2, num_kv_heads, 4, 16).bfloat16())
    native.store(key, value, struct_of_cache(found[0], found[1], dim, scales), slots)
    of_keys, of_values = (key, tiled_keys, scales.key), (value, tiled_values, scales.value)
    for (x, tiled, scale), cache in zip((of_keys, of_values), found, strict=True):
        numbers, wanted = quantise(x, dtype, torch.bfloat16)
        rows = torch.zeros(64, num_kv_heads, dim, dtype=torch.int8).view(dtype)
        rows.view(torch.int8)[slots] = numbers.view(torch.int8)
        expected = tiled(rows.view(4, 16, num_kv_heads, dim))
        assert torch.equal(scale.flatten(1).T[slots].nan_to_num(7.5), wanted.nan_to_num(7.5))
        is_sound = wanted.isfinite().unsqueeze(-1).expand(-1, -1, dim)
        sound = torch.zeros(64, num_kv_heads, dim, dtype=torch.bool)
        sound[slots] = is_sound
        masks = tiled(sound.view(4, 16, num_kv_heads, dim))
        assert torch.equal(cache.contiguous().view(torch.int8)[masks], expected.contiguous().view(torch.int8)[masks])


@pytest.mark.parametrize("dtype", GREATEST, ids=str)
def test_scales_that_are_not_finite_stay_in_their_rows(native: NativeKernels, dtype: torch.dtype) -> None:
    case = build_case(LAYOUTS["shared"], HEADS["gqa-64"], 16, torch.bfloat16)
    numbers, scales = zip(
        *(quantise(x, dtype, torch.bfloat16) for x in (case.key_cache, case.value_cache)), strict=True
    )
    kept = KVScales(*(x.permute(2, 0, 1).contiguous() for x in scales))
    keys, values = tiled_keys(numbers[0]), tiled_values(numbers[1])
    plan = plan_step(case.batch, 3, None, is_invariant=False)
    heads = AttentionHeads.of(9, 3, 64, case.rules)

    def attend() -> torch.Tensor:
        return native.attention(case.query, struct_of_cache(keys, values, 64, kept), plan, heads)

    sound = attend()
    for tensor, row in ((kept.key, 1), (kept.value, 3)):
        sequence = case.batch.sequences[row]
        tensor[0, sequence.block_ids[-1], sequence.num_context % 16] = torch.nan
    found = attend()
    assert [row for row, output in enumerate(found) if not output.isfinite().all()] == [1, 3]
    assert torch.equal(found[[0, 2, 4, 5]], sound[[0, 2, 4, 5]])
