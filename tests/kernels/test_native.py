"""The C kernels against their oracles, where this machine can compile and run them: with the processor's matrix tiles,
where it has them, and with vectors."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.native.attending import NativePlan
from kernels.native.library import AttentionHeads, NativeKernels
from kernels.native.planning import SPLIT_KEYS, is_served, plan_step
from kernels.native.tiles import struct_of_cache, tiled_keys, tiled_values
from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules
from tests.kernels.cases import LAYOUTS, AttentionCase, SequenceLayout, build_case
from tests.kernels.native_cases import HEADS, NATIVE_LAYOUTS, ROUNDING, RULES


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def attend(native: NativeKernels, case: AttentionCase) -> Tensor:
    """Tile the cache, and attend over it."""
    keys, values = tiled_keys(case.key_cache), tiled_values(case.value_cache)
    return attend_over(native, case, keys, values)


def attend_over(
    native: NativeKernels, case: AttentionCase, keys: Tensor, values: Tensor, *, is_invariant: bool = False
) -> Tensor:
    """Attend over a tiled cache with queries that are a view of wider rows."""
    num_tokens, num_heads, head_dim = case.query.shape
    num_kv_heads = case.key_cache.shape[2]
    assert is_served(num_heads, num_kv_heads, head_dim)
    wide = torch.full((num_tokens, num_heads + 2, head_dim), torch.nan, dtype=torch.bfloat16)
    wide[:, :num_heads] = case.query
    per_head = num_heads // num_kv_heads
    plan = plan_step(case.batch, per_head, case.rules.window, is_invariant=is_invariant)
    heads = AttentionHeads.of(num_heads, num_kv_heads, head_dim, case.rules)
    return native.attention(wide[:, :num_heads], struct_of_cache(keys, values, head_dim), plan, heads)


def assert_equals_reference(native: NativeKernels, case: AttentionCase) -> None:
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    found = attend(native, case)
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-2)


@pytest.mark.parametrize(("heads", "block_size"), [*((heads, 16) for heads in HEADS), ("gqa-64", 32), ("gqa-64", 48)])
@pytest.mark.parametrize("layout", NATIVE_LAYOUTS)
def test_attention_equals_reference(native: NativeKernels, layout: str, heads: str, block_size: int) -> None:
    assert_equals_reference(native, build_case(NATIVE_LAYOUTS[layout], HEADS[heads], block_size, torch.bfloat16))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("layout", ["decodes", "chunks", "window", "shared", "nested", "drafts", "long chunk"])
def test_rules_equal_reference(native: NativeKernels, layout: str, rules: str) -> None:
    case = build_case(NATIVE_LAYOUTS[layout], HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=RULES[rules]))


LONG = (
    *(SequenceLayout(SPLIT_KEYS + 480 + n, 1, (("document", SPLIT_KEYS + 320),)) for n in (1, 90)),
    SequenceLayout(2 * SPLIT_KEYS + 5, 1),
    SequenceLayout(SPLIT_KEYS - 20, 50),
)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("window", [None, SPLIT_KEYS + 100])
def test_long_sequences_are_split(native: NativeKernels, window: int | None) -> None:
    case = build_case(LONG, HEADS["gqa-64"], 16, torch.bfloat16)
    assert_equals_reference(native, replace(case, rules=ScoreRules(0.17, window=window)))


def test_groups_that_are_larger_than_a_task(native: NativeKernels) -> None:
    layouts = tuple(SequenceLayout(130 + n, 1, (("document", 128),)) for n in range(50))
    assert_equals_reference(native, build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("rules", [ScoreRules(0.17), ScoreRules(0.17, window=70), RULES["all"]], ids=str)
def test_a_row_is_the_same_in_any_batch_and_chunk(native: NativeKernels, rules: ScoreRules) -> None:
    """Of the sequences that share a document, two take it from the same tasks; alone, each reads it by itself."""
    own = tuple(SequenceLayout(n, m) for n, m in ((300, 1), (5, 1), (1500, 1), (64, 1), (63, 60), (0, 1100)))
    layouts = (*own, *(SequenceLayout(620 + n, 1 + n, (("document", 608),)) for n in range(3)))
    case = build_case(layouts, HEADS["gqa-64"], 16, torch.bfloat16)
    case = replace(case, rules=rules)
    keys, values = tiled_keys(case.key_cache), tiled_values(case.value_cache)
    together = attend_over(native, case, keys, values, is_invariant=True)
    start = 0
    for sequence in case.batch.sequences:
        for index in range(0, sequence.num_new, 5):
            single = replace(sequence, num_context=sequence.num_context + index, num_new=1)
            query = case.query[start + index : start + index + 1]
            single_case = replace(case, query=query, batch=PagedBatch((single,), 16))
            alone = attend_over(native, single_case, keys, values, is_invariant=True)
            assert torch.equal(alone[0], together[start + index])
        start += sequence.num_new


def test_what_is_not_finite_stays_in_its_row(native: NativeKernels) -> None:
    case = build_case(LAYOUTS["shared"], HEADS["gqa-64"], 16, torch.bfloat16)
    sound = attend(native, case)
    last = case.batch.sequences[2]
    case.key_cache[last.block_ids[-1], last.num_context % 16] = torch.nan
    case.query[4] = torch.inf
    own = case.batch.sequences[0]
    case.value_cache[own.block_ids[-1], own.num_context % 16, 1] = torch.nan
    found = attend(native, case)
    broken = [row for row, output in enumerate(found) if not output.isfinite().all()]
    assert broken == [0, 2, 4]
    others = [row for row in range(len(found)) if row not in broken]
    assert torch.equal(found[others], sound[others])


def test_store_and_attend(native: NativeKernels) -> None:
    """Keys and values come as views with their heads first; the queries' heads are first in memory."""
    case = build_case(LAYOUTS["mixed"], HEADS["gqa-64"], 16, torch.bfloat16)
    slots = torch.tensor(case.batch.slot_mapping())
    key, value = (cache.flatten(0, 1)[slots] for cache in (case.key_cache, case.value_cache))
    key_cache, value_cache = (
        cache.flatten(0, 1).index_fill(0, slots, torch.nan).view_as(cache)
        for cache in (case.key_cache, case.value_cache)
    )
    keys, values = tiled_keys(key_cache), tiled_values(value_cache)
    plan = NativePlan(native, plan_step(case.batch, 3, None, is_invariant=False))
    query, key, value = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (case.query, key, value))
    output = plan.store_and_attend(query, key, value, struct_of_cache(keys, values, 64), slots, case.rules)
    assert torch.equal(output, attend(native, case))
