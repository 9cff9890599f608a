"""How a step's attention is split on a GPU: every query sees each of its keys once, however the keys are split."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.triton_plan import SplitRule, TritonPlan, plan_attention
from tests.kernels.cases import LAYOUTS, Heads, SequenceLayout, build_case

CPU = torch.device("cpu")
WHOLE = SplitRule(num_programs=1, min_saved_keys=10**9)


def plan(batch: PagedBatch, rule: SplitRule, per_head: int = 1, window: int | None = None) -> TritonPlan:
    return plan_attention(batch, per_head, torch.float16, CPU, rule, window)


def batch_of(layouts: list[SequenceLayout], block_size: int = 16) -> PagedBatch:
    return build_case(layouts, Heads(1, 1, 1), block_size, torch.float32).batch


def slots_of(table: Sequence[int], block_size: int, first_key: int, stop_key: int) -> Tensor:
    keys = torch.arange(first_key, stop_key)
    return torch.tensor(table)[keys // block_size] * block_size + keys % block_size


def times_seen(plan: TritonPlan, num_slots: int) -> Tensor:
    """Return how often the tiles let a row see a slot: [num_tokens, queries_per_kv_head, num_slots]."""
    seen = torch.zeros(plan.num_tokens, plan.queries_per_kv_head, num_slots, dtype=torch.int32)
    tokens, positions = plan.query_tokens.tolist(), plan.query_positions.tolist()
    tables = plan.block_tables.tolist()
    for table, first_row, num_rows, first_key, stop_key in plan.tiles.tolist():
        assert 1 <= num_rows <= plan.tile_rows
        for row in range(first_row, first_row + num_rows):
            query, head = divmod(row, plan.queries_per_kv_head)
            first = max(first_key, 0 if plan.window is None else positions[query] - plan.window + 1)
            stop = max(first, min(stop_key, positions[query] + 1))
            seen[tokens[query], head, slots_of(tables[table], plan.block_size, first, stop)] += 1
    return seen


def visible_once(batch: PagedBatch, per_head: int, window: int | None, num_slots: int) -> Tensor:
    visible = []
    for sequence in batch.sequences:
        for position in range(sequence.num_context, sequence.num_tokens):
            first = 0 if window is None else max(0, position - window + 1)
            row = torch.zeros(num_slots, dtype=torch.int32)
            row[slots_of(sequence.block_ids, batch.block_size, first, position + 1)] = 1
            visible.append(row.expand(per_head, -1))
    return torch.stack(visible)


layouts = st.lists(
    st.builds(
        lambda document, context, num_new: SequenceLayout(
            (0 if document is None else 96) + context, num_new, () if document is None else ((document, 96),)
        ),
        document=st.sampled_from((None, "a", "a", "b")),
        context=st.integers(0, 150),
        num_new=st.one_of(st.just(1), st.integers(1, 30)),
    ),
    min_size=1,
    max_size=6,
)
rules = st.builds(
    SplitRule,
    num_programs=st.sampled_from((1, 3, 1000)),
    min_part_keys=st.sampled_from((1, 64, 100)),
    min_saved_keys=st.sampled_from((1, 96, 10**9)),
)


@given(layouts, rules, st.sampled_from((1, 3, 17)), st.one_of(st.none(), st.integers(1, 300)))
@settings(max_examples=40, deadline=None)
def test_every_row_sees_each_visible_key_once(
    layouts: list[SequenceLayout], rule: SplitRule, per_head: int, window: int | None
) -> None:
    batch = batch_of(layouts)
    found = plan(batch, rule, per_head, window)
    num_slots = 16 * (1 + max(max(sequence.block_ids) for sequence in batch.sequences))
    assert torch.equal(times_seen(found, num_slots), visible_once(batch, per_head, window, num_slots))


@given(layouts, rules)
@settings(max_examples=60, deadline=None)
def test_a_token_is_whole_or_merged_of_all_its_parts(layouts: list[SequenceLayout], rule: SplitRule) -> None:
    found = plan(batch_of(layouts), rule)
    rows = [row for _, first, count, _, _ in found.tiles.tolist() for row in range(first, first + count)]
    whole = {row for row in rows if row < found.num_tokens}
    parts = sorted(row - found.num_tokens for row in rows if row >= found.num_tokens)
    assert parts == list(range(found.num_parts))
    merged: dict[int, list[int]] = {}
    if found.merges is not None:
        starts = found.merges.starts.tolist()
        for token, start, stop in zip(found.merges.tokens.tolist(), starts, starts[1:], strict=False):
            merged[token] = found.merges.parts[start:stop].tolist()
    assert whole.isdisjoint(merged)
    assert whole | merged.keys() == set(range(found.num_tokens))
    assert sorted(part for ids in merged.values() for part in ids) == parts
    tokens = found.query_tokens.tolist()
    assert all(tokens[found.num_tokens + part] == token for token, ids in merged.items() for part in ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_merged_where_nothing_is_split(layout: str) -> None:
    found = plan(build_case(LAYOUTS[layout], Heads(1, 1, 1), 16, torch.float32).batch, WHOLE)
    assert (found.merges, found.num_parts) == (None, 0)


def keys_read(plan: TritonPlan) -> int:
    return sum(stop - first for _, _, _, first, stop in plan.tiles.tolist())


def test_each_group_reads_its_prefix_once() -> None:
    documents = [SequenceLayout(1030 + n, 1, ((name, 1024),)) for name in "ab" for n in range(4)]
    found = plan(batch_of(documents), SplitRule(num_programs=1))
    assert keys_read(found) == 2 * 1024 + sum(layout.num_context + 1 - 1024 for layout in documents)


def test_sharing_that_saves_little_is_not_worth_a_merge() -> None:
    documents = [SequenceLayout(100, 1, (("a", 96),)), SequenceLayout(100, 1, (("a", 96),))]
    assert plan(batch_of(documents), SplitRule(num_programs=1)).merges is None


def test_a_few_long_contexts_are_split_to_fill_the_gpu() -> None:
    batch = PagedBatch((PagedSequence(range(2000), 31_999, 1), PagedSequence(range(3000, 3002), 20, 1)), 16)
    found = plan(batch, SplitRule(num_programs=32))
    assert 30 <= len(found.tiles) <= 34
    longest = max(stop - first for _, _, _, first, stop in found.tiles.tolist())
    assert longest <= 1024 + 64
    assert found.num_parts == len(found.tiles) - 1  # the short one is whole


def test_an_even_batch_that_fills_the_gpu_is_not_split() -> None:
    sequences = tuple(PagedSequence(range(n * 130, n * 130 + 130), 2047, 1) for n in range(32))
    assert plan(PagedBatch(sequences, 16), SplitRule(num_programs=33)).merges is None
