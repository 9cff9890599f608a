"""Paged attention on this machine's processor against its oracle, over odd shapes, sharing and poisoned memory."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import ops, reference
from kernels.paged_batch import PagedBatch
from kernels.score_rules import ScoreRules
from tests.kernels.cases import HEADS, LAYOUTS, AttentionCase, SequenceLayout, blocks_apart, build_case

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-2}  # of outputs that average values drawn from N(0, 1)


def attend(case: AttentionCase) -> Tensor:
    plan = ops.plan_attention(
        case.batch,
        num_heads=case.query.shape[1],
        num_kv_heads=case.key_cache.shape[2],
        dtype=case.query.dtype,
        device=case.query.device,
        window=case.rules.window,
    )
    return ops.paged_attention(case.query, case.key_cache, case.value_cache, plan, case.rules)


def assert_equals_reference(case: AttentionCase) -> None:
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    assert expected.isfinite().all()
    found = attend(case)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[found.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_reference(layout: str, heads: str, block_size: int, dtype: torch.dtype) -> None:
    assert_equals_reference(build_case(LAYOUTS[layout], HEADS[heads], block_size, dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_that_lie_apart_are_read_as_any(layout: str) -> None:
    """As where layers of different shapes share a block."""
    case = build_case(LAYOUTS[layout], HEADS["gqa-64"], 16, torch.bfloat16)
    apart = replace(case, key_cache=blocks_apart(case.key_cache), value_cache=blocks_apart(case.value_cache))
    assert torch.equal(attend(apart), attend(case))


RULES = {
    "window-1": ScoreRules(0.17, window=1),
    "window-20": ScoreRules(0.17, window=20),
    "window-100": ScoreRules(0.17, window=100),
    "window-1000": ScoreRules(0.17, window=1000),
    "softcap": ScoreRules(0.5, softcap=2.0),
    "sinks": ScoreRules(0.17, sinks=torch.linspace(-2.0, 3.0, 9)),
    "slopes": ScoreRules(0.17, slopes=torch.logspace(-0.5, -8, 9, base=2.0)),
    "all": ScoreRules(
        0.5,
        window=33,
        softcap=3.0,
        sinks=torch.linspace(3.0, -2.0, 9),
        slopes=torch.logspace(-1, -9, 9, base=2.0),
    ),
}


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_equals_reference_under_rules(layout: str, rules: str, block_size: int) -> None:
    case = build_case(LAYOUTS[layout], HEADS["gqa-64"], block_size, torch.float32)
    assert_equals_reference(replace(case, rules=RULES[rules]))


def test_window_over_a_long_chunk() -> None:
    """Tiles of which some see all, some a part, some nothing of the context."""
    case = build_case([SequenceLayout(100, 500), SequenceLayout(700, 1)], HEADS["gqa-64"], 16, torch.float32)
    assert_equals_reference(replace(case, rules=ScoreRules(0.17, window=150)))


def test_what_slid_out_of_the_window_is_not_read() -> None:
    """Its blocks may have been given to others by then; here they hold NaN."""
    case = build_case([SequenceLayout(100, 40), SequenceLayout(170, 1)], HEADS["gqa-64"], 4, torch.float32)
    rules = ScoreRules(0.17, window=24)
    expected = attend(replace(case, rules=rules))
    for sequence in case.batch.sequences:
        gone = list(sequence.block_ids[: (sequence.num_context - 24 + 1) // 4])
        case.key_cache[gone] = case.value_cache[gone] = torch.nan
    torch.testing.assert_close(attend(replace(case, rules=rules)), expected, rtol=0, atol=0)


layouts = st.lists(
    st.builds(
        lambda document, spare_context, num_new, spare: SequenceLayout(
            (0 if document is None else 80) + spare_context,
            num_new,
            () if document is None else ((document, 80),),
            spare,
        ),
        document=st.sampled_from((None, "a", "a", "b")),
        spare_context=st.integers(0, 40),
        num_new=st.one_of(st.just(1), st.integers(1, 24)),
        spare=st.integers(0, 2),
    ),
    min_size=1,
    max_size=10,
)


@given(
    layouts,
    st.sampled_from(sorted(HEADS)),
    st.sampled_from((1, 2, 4, 8, 16)),
    st.one_of(st.none(), st.integers(1, 130)),
    st.integers(0, 100),
)
@settings(max_examples=80, deadline=None)
def test_equals_reference_on_any_batch(
    layouts: list[SequenceLayout], heads: str, block_size: int, window: int | None, seed: int
) -> None:
    case = build_case(layouts, HEADS[heads], block_size, torch.float32, seed)
    assert_equals_reference(replace(case, rules=ScoreRules(0.17, window=window)))


@pytest.mark.parametrize("layout", ["decodes", "mixed", "shared", "nested"])
def test_one_sequence_that_is_not_finite_spoils_only_itself(layout: str) -> None:
    """Padding must not read it either, wherever its blocks lie: here it holds block 0."""
    case = build_case((*LAYOUTS[layout], SequenceLayout(20, 1)), HEADS["gqa-64"], 4, torch.float32)
    sequences = list(case.batch.sequences)
    sequences[-1] = type(sequences[-1])([0, *sequences[-1].block_ids[1:]], 20, 1)
    poisoned = AttentionCase(case.query, case.key_cache, case.value_cache, PagedBatch(tuple(sequences), 4), case.rules)
    found, expected = attend(poisoned), attend(case)
    assert found[-1].isnan().all()
    torch.testing.assert_close(found[:-1], expected[:-1], rtol=0, atol=TOLERANCE[torch.float32])


def test_large_scores_do_not_overflow() -> None:
    case = build_case(LAYOUTS["nested"], HEADS["gqa-64"], 16, torch.float32)
    case.key_cache.mul_(200.0)
    found = attend(case)
    assert found.isfinite().all()
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_output_does_not_alias_the_query() -> None:
    case = build_case(LAYOUTS["mixed"], HEADS["mha-32"], 4, torch.float32)
    query, key_cache = case.query.clone(), case.key_cache.clone()
    attend(case)
    assert torch.equal(case.query, query)
    torch.testing.assert_close(case.key_cache, key_cache, rtol=0, atol=0, equal_nan=True)


def test_query_may_be_a_transposed_view() -> None:
    """As the model gives it: [heads, tokens, head_dim] seen the other way round."""
    case = build_case(LAYOUTS["mixed"], HEADS["gqa-40"], 4, torch.float32)
    view = case.query.transpose(0, 1).contiguous().transpose(0, 1)
    assert not view.is_contiguous()
    assert_equals_reference(AttentionCase(view, case.key_cache, case.value_cache, case.batch, case.rules))
