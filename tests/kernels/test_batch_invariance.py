"""Attention that must not depend on the batch: the same bits alone, beside others, in chunks and token by token."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import ops, reference
from kernels.cpu_invariant import SPLIT_KEYS, plan_attention
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from tests.kernels.cases import HEADS, LAYOUTS, AttentionCase, SequenceLayout, build_case
from tests.kernels.test_paged_attention import RULES, TOLERANCE

LONG = (SequenceLayout(700, 1), SequenceLayout(250, 50), SequenceLayout(0, 270), SequenceLayout(255, 1))


def attend(case: AttentionCase, sequences: Sequence[PagedSequence], query: Tensor) -> Tensor:
    plan = ops.plan_attention(
        PagedBatch(tuple(sequences), case.batch.block_size),
        num_heads=query.shape[1],
        num_kv_heads=case.key_cache.shape[2],
        dtype=query.dtype,
        device=query.device,
        window=case.rules.window,
        batch_invariant=True,
    )
    return ops.paged_attention(query, case.key_cache, case.value_cache, plan, case.rules)


def alone(case: AttentionCase) -> list[Tensor]:
    queries = case.query.split([sequence.num_new for sequence in case.batch.sequences])
    return [attend(case, [one], query) for one, query in zip(case.batch.sequences, queries, strict=True)]


def cut(sequence: PagedSequence, sizes: Sequence[int]) -> list[PagedSequence]:
    """Return a sequence's queries as several sequences, as steps one after another would have them."""
    starts = [sequence.num_context + sum(sizes[:index]) for index in range(len(sizes))]
    return [PagedSequence(sequence.block_ids, start, size) for start, size in zip(starts, sizes, strict=True)]


def check(case: AttentionCase) -> None:
    together = attend(case, case.batch.sequences, case.query)
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    torch.testing.assert_close(together, expected, rtol=0, atol=TOLERANCE[together.dtype])
    assert torch.equal(together, torch.cat(alone(case)))
    backwards = list(zip(case.batch.sequences, alone(case), strict=True))[::-1]
    queries = case.query.split([sequence.num_new for sequence in case.batch.sequences])[::-1]
    assert torch.equal(
        attend(case, [one for one, _ in backwards], torch.cat(queries)), torch.cat([output for _, output in backwards])
    )
    tokens = [part for one in case.batch.sequences for part in cut(one, [1] * one.num_new)]
    assert torch.equal(attend(case, tokens, case.query), together)
    halves = [part for one in case.batch.sequences for part in cut(one, [one.num_new // 3, -(-2 * one.num_new // 3)])]
    assert torch.equal(attend(case, [half for half in halves if half.num_new], case.query), together)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("heads", ["mha-32", "gqa-64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str, heads: str, dtype: torch.dtype) -> None:
    check(build_case(LAYOUTS[layout], HEADS[heads], 16, dtype))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rules", RULES)
def test_rules_over_several_splits(rules: str, dtype: torch.dtype) -> None:
    case = build_case(LONG, HEADS["gqa-64"], 16, dtype)
    check(replace(case, rules=RULES[rules]))


@pytest.mark.parametrize("threads", [1, 2])
def test_number_of_threads(threads: int) -> None:
    case = build_case(LONG, HEADS["mha-32"], 32, torch.bfloat16)
    check(case)
    before, found = torch.get_num_threads(), alone(case)
    torch.set_num_threads(threads)
    try:
        assert all(torch.equal(a, b) for a, b in zip(alone(case), found, strict=True))
    finally:
        torch.set_num_threads(before)


def test_what_slid_out_of_the_window_is_not_read() -> None:
    """Its blocks may have been given to others by then; here they hold NaN."""
    case = build_case([SequenceLayout(700, 1), SequenceLayout(650, 20)], HEADS["gqa-64"], 16, torch.float32)
    for sequence in case.batch.sequences:
        gone = list(sequence.block_ids[: (sequence.num_context - 100 + 1) // 16])
        case.key_cache[gone] = torch.nan
        case.value_cache[gone] = torch.nan
    check(replace(case, rules=ScoreRules(0.17, window=100)))


def test_a_block_size_that_no_split_is_a_multiple_of() -> None:
    batch = PagedBatch((PagedSequence([0, 1], 3, 1),), 3)
    with pytest.raises(ValueError, match=f"block_size is 3; batch_invariant needs one that divides {SPLIT_KEYS}"):
        plan_attention(batch, torch.float32)
