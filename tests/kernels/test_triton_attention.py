"""The Triton attention kernel against its oracle, over caches that are NaN wherever nothing was written."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import ops, reference, triton_attention
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from kernels.triton_plan import SplitRule, TritonPlan, plan_attention
from tests.kernels.cases import LAYOUTS, AttentionCase, Heads, build_case
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
if DEVICE.type == "cpu":
    del TOLERANCES[torch.bfloat16]  # whose bits the interpreter multiplies as integers
BASIC_LAYOUTS = ("decodes", "chunks", "mixed")
GQA = Heads(num_heads=6, num_kv_heads=2, head_dim=64)
WHOLE = SplitRule(num_programs=1, min_saved_keys=10**9)
SPLIT = SplitRule(num_programs=10**6, min_part_keys=64, min_saved_keys=10**9)
SHARED = SplitRule(num_programs=1, min_saved_keys=64)
SHARED_AND_SPLIT = SplitRule(num_programs=10**6, min_part_keys=64, min_saved_keys=64)


def poisoned_case(
    layout: str, heads: Heads = GQA, block_size: int = 16, dtype: torch.dtype = torch.float32
) -> AttentionCase:
    """Return a case with NaN in every unwritten slot, and the query's heads before its tokens, as models do."""
    case = build_case(LAYOUTS[layout], heads, block_size, dtype)
    stored = PagedBatch(tuple(PagedSequence(s.block_ids, 0, s.num_tokens) for s in case.batch.sequences), block_size)
    unwritten = torch.ones(case.key_cache.shape[:2], dtype=torch.bool).flatten()
    unwritten[stored.slot_mapping()] = False
    caches = torch.stack((case.key_cache, case.value_cache)).flatten(1, 2)
    caches[:, unwritten] = torch.nan
    key_cache, value_cache = caches.view(2, *case.key_cache.shape).to(DEVICE)
    query = case.query.transpose(0, 1).contiguous().transpose(0, 1).to(DEVICE)
    return replace(case, query=query, key_cache=key_cache, value_cache=value_cache)


def plan_for(case: AttentionCase, rule: SplitRule = WHOLE) -> TritonPlan:
    queries_per_kv_head = case.query.shape[1] // case.key_cache.shape[2]
    return plan_attention(case.batch, queries_per_kv_head, case.query.dtype, DEVICE, rule, case.rules.window)


def attend(case: AttentionCase, rule: SplitRule = WHOLE) -> Tensor:
    plan = plan_for(case, rule)
    return triton_attention.paged_attention(case.query, case.key_cache, case.value_cache, plan, case.rules)


def check(case: AttentionCase, rule: SplitRule = WHOLE) -> None:
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    assert expected.isfinite().all()
    tolerance = TOLERANCES[case.query.dtype]
    torch.testing.assert_close(attend(case, rule), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 8), (80, 16), (128, 32)])
@pytest.mark.parametrize("queries_per_kv_head", [1, 3, 8])
@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_equals_the_oracle(layout: str, queries_per_kv_head: int, head_dim: int, block_size: int) -> None:
    check(poisoned_case(layout, Heads(2 * queries_per_kv_head, 2, head_dim), block_size, torch.float16))


@pytest.mark.parametrize("head_dim", [32, 72, 256])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_other_types_and_widths(layout: str, dtype: torch.dtype, head_dim: int) -> None:
    check(poisoned_case(layout, Heads(3, 1, head_dim), dtype=dtype))


def rules_for(heads: Heads) -> dict[str, ScoreRules]:
    """Return what models do to scores, one thing at a time and all at once; sinks above most scores and below."""
    slopes = torch.logspace(-0.5, -8, heads.num_heads, base=2.0, device=DEVICE)
    sinks = torch.linspace(-2.0, 30.0, heads.num_heads, device=DEVICE)
    return {
        "window-1": ScoreRules(0.17, window=1),
        "window-33": ScoreRules(0.17, window=33),
        "window-1000": ScoreRules(0.17, window=1000),
        "softcap": ScoreRules(2.0, softcap=3.0),
        "sinks": ScoreRules(0.17, sinks=sinks),
        "slopes": ScoreRules(0.17, slopes=slopes),
        "all": ScoreRules(0.5, window=75, softcap=3.0, sinks=sinks, slopes=slopes),
    }


RULES = rules_for(GQA)


@pytest.mark.parametrize("rule", [WHOLE, SHARED_AND_SPLIT], ids=["whole", "parts"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("layout", ["mixed", "shared"])
def test_rules_of_scores(layout: str, rules: str, rule: SplitRule) -> None:
    check(replace(poisoned_case(layout), rules=RULES[rules]), rule)


@pytest.mark.parametrize("rule", [WHOLE, SHARED_AND_SPLIT], ids=["whole", "parts"])
def test_what_slid_out_of_the_window_is_not_read(rule: SplitRule) -> None:
    case = poisoned_case("window")
    window = 40
    for sequence in case.batch.sequences:
        gone = list(sequence.block_ids[: max(0, sequence.num_context - window + 1) // case.batch.block_size])
        case.key_cache[gone] = case.value_cache[gone] = torch.nan
    rules = ScoreRules(0.17, window=window)
    found = attend(replace(case, rules=rules), rule)
    expected = attend(replace(poisoned_case("window"), rules=rules), rule)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_are_merged(layout: str) -> None:
    check(poisoned_case(layout, Heads(3, 1, 40), dtype=torch.float16), SHARED_AND_SPLIT)


@pytest.mark.parametrize("rule", [SPLIT, SHARED], ids=["split", "shared"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_split_or_shared(dtype: torch.dtype, rule: SplitRule) -> None:
    check(poisoned_case("nested", Heads(2, 2, 80), dtype=dtype), rule)


def test_parts_of_more_query_heads_than_divide_a_tile() -> None:
    check(poisoned_case("mixed", Heads(40, 1, 32), dtype=torch.float16), SHARED_AND_SPLIT)


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - set(BASIC_LAYOUTS)))
def test_shared_blocks(layout: str) -> None:
    check(poisoned_case(layout))


@pytest.mark.parametrize("block_size", [5, 128])
def test_other_block_sizes(block_size: int) -> None:
    check(poisoned_case("mixed", block_size=block_size))


def test_more_query_heads_than_a_tile_has_rows() -> None:
    check(poisoned_case("mixed", Heads(71, 1, 64), dtype=torch.float16))


def test_large_scores_do_not_overflow() -> None:
    check(replace(poisoned_case("mixed"), rules=ScoreRules(10.0)))  # e^240 is beyond float32


def test_other_cache_layouts() -> None:
    """K and V of a block side by side, then heads before slots, too."""
    case = poisoned_case("mixed")
    blocks = torch.stack((case.key_cache, case.value_cache), dim=1)
    check(replace(case, key_cache=blocks[:, 0], value_cache=blocks[:, 1]))
    blocks = blocks.transpose(2, 3).contiguous().transpose(2, 3)
    check(replace(case, key_cache=blocks[:, 0], value_cache=blocks[:, 1]))


def test_blocks_beyond_two_to_the_31_elements() -> None:
    case = poisoned_case("first-token", Heads(4, 4, 256), 128, torch.float16)
    num_blocks = 2**31 // (2 * case.key_cache[0].numel()) + 2
    shape = (num_blocks, 2, *case.key_cache.shape[1:])
    blocks = torch.empty(shape, dtype=torch.float16, device=DEVICE)  # only touched pages take memory on a CPU
    (sequence,) = case.batch.sequences
    blocks[-1, 0] = case.key_cache[sequence.block_ids[0]]
    blocks[-1, 1] = case.value_cache[sequence.block_ids[0]]
    batch = replace(case.batch, sequences=(replace(sequence, block_ids=[num_blocks - 1]),))
    check(replace(case, key_cache=blocks[:, 0], value_cache=blocks[:, 1], batch=batch))


def test_ops_follows_the_plan() -> None:
    case = poisoned_case("mixed")
    output = ops.paged_attention(case.query, case.key_cache, case.value_cache, plan_for(case), case.rules)
    assert torch.equal(output, attend(case))


def test_a_head_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head_dim is 512; with a cache of torch.float32 it must be at most 256"):
        attend(poisoned_case("first-token", Heads(1, 1, 512)))


@pytest.mark.parametrize("window", [None, 40])
def test_bits_do_not_depend_on_the_batch(window: int | None) -> None:
    """The same alone, beside others, in chunks and token by token, though others would split and share."""
    case = poisoned_case("shared-by-decodes-and-chunks", dtype=torch.float16)
    case = replace(case, rules=replace(case.rules, window=window))
    check(case, SplitRule.invariant())
    together = attend(case, SplitRule.invariant())
    start = 0
    for sequence in case.batch.sequences:
        query = case.query[start : start + sequence.num_new]
        for size in (1, sequence.num_new):
            cuts = range(0, sequence.num_new, size)
            pieces = tuple(PagedSequence(sequence.block_ids, sequence.num_context + cut, size) for cut in cuts)
            apart = replace(case, query=query, batch=PagedBatch(pieces, case.batch.block_size))
            assert torch.equal(attend(apart, SplitRule.invariant()), together[start : start + sequence.num_new])
        start += sequence.num_new
