"""The Triton attention kernel against its oracle, over caches that are NaN wherever nothing was written."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import ops, reference, triton_attention
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules
from tests.kernels.cases import LAYOUTS, AttentionCase, Heads, build_case
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
TOLERANCES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
if DEVICE.type == "cpu":
    del TOLERANCES[torch.bfloat16]  # whose bits the interpreter multiplies as integers
BASIC_LAYOUTS = ("decodes", "chunks", "mixed")
GQA = Heads(num_heads=6, num_kv_heads=2, head_dim=64)


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


def plan_for(case: AttentionCase) -> triton_attention.TritonPlan:
    queries_per_kv_head = case.query.shape[1] // case.key_cache.shape[2]
    return triton_attention.plan_attention(case.batch, queries_per_kv_head, case.query.dtype, DEVICE)


def attend(case: AttentionCase) -> Tensor:
    return triton_attention.paged_attention(case.query, case.key_cache, case.value_cache, plan_for(case), case.rules)


def check(case: AttentionCase) -> None:
    expected = reference.paged_attention(case.query, case.key_cache, case.value_cache, case.batch, case.rules)
    assert expected.isfinite().all()
    tolerance = TOLERANCES[case.query.dtype]
    torch.testing.assert_close(attend(case), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("queries_per_kv_head", [1, 3, 8])
@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_equals_the_oracle(layout: str, queries_per_kv_head: int, head_dim: int, block_size: int) -> None:
    check(poisoned_case(layout, Heads(2 * queries_per_kv_head, 2, head_dim), block_size, torch.float16))


@pytest.mark.parametrize("head_dim", [32, 72, 256])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_other_types_and_widths(layout: str, dtype: torch.dtype, head_dim: int) -> None:
    check(poisoned_case(layout, Heads(3, 1, head_dim), dtype=dtype))


@pytest.mark.parametrize("layout", sorted(LAYOUTS.keys() - set(BASIC_LAYOUTS)))
def test_shared_blocks(layout: str) -> None:
    check(poisoned_case(layout))


@pytest.mark.parametrize("block_size", [5, 128])
def test_other_block_sizes(block_size: int) -> None:
    check(poisoned_case("mixed", block_size=block_size))


@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_more_query_heads_than_a_tile_has_rows(layout: str) -> None:
    check(poisoned_case(layout, Heads(71, 1, 64), dtype=torch.float16))


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


@pytest.mark.parametrize("queries_per_kv_head", [1, 3, 71])
@pytest.mark.parametrize("layout", BASIC_LAYOUTS)
def test_tiles_hold_every_row_once(layout: str, queries_per_kv_head: int) -> None:
    case = poisoned_case(layout, Heads(queries_per_kv_head, 1, 32), dtype=torch.float16)
    plan = plan_for(case)
    rows: list[int] = []
    first_positions: dict[int, int] = {}
    for sequence, first_row, num_rows, offset in plan.tiles.tolist():
        assert 1 <= num_rows <= plan.tile_rows
        rows += range(first_row, first_row + num_rows)
        first_positions.setdefault(sequence, first_row // queries_per_kv_head + offset)
    assert rows == list(range(case.query.shape[0] * queries_per_kv_head))
    assert list(first_positions.values()) == [sequence.num_context for sequence in case.batch.sequences]


def test_ops_follows_the_plan() -> None:
    case = poisoned_case("mixed")
    output = ops.paged_attention(case.query, case.key_cache, case.value_cache, plan_for(case), case.rules)
    assert torch.equal(output, attend(case))


def test_a_head_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim is 512; it must be at most 256"):
        attend(poisoned_case("first-token", Heads(1, 1, 512)))
