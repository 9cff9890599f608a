"""Plans that are filled anew: attention by one is that by the plan it was filled from."""

import pytest
import torch

from kernels import triton_attention
from kernels.triton_plan import SplitRule, TritonPlan, plan_attention
from kernels.triton_static_plan import PlanRoom, StaticPlan
from tests.kernels.cases import AttentionCase, Heads, SequenceLayout, build_case
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
CPU = torch.device("cpu")
HEADS = Heads(3, 1, 32)
WHOLE = SplitRule(num_programs=1, min_saved_keys=10**9)
SPLIT = SplitRule(num_programs=40, min_part_keys=64, min_saved_keys=10**9)
SHARED = SplitRule(num_programs=40, min_part_keys=64, min_saved_keys=64)
LONG = [SequenceLayout(n, 1) for n in (0, 300, 17, 129)]
SHORT = [SequenceLayout(n, 1) for n in (5, 70, 0, 1)]
READERS = [SequenceLayout(130 + n, 1, (("document", 128),)) for n in range(4)]


def case_of(layouts: list[SequenceLayout]) -> AttentionCase:
    return build_case(layouts, HEADS, 16, torch.float16)


def plan_of(case: AttentionCase, rule: SplitRule, device: torch.device) -> TritonPlan:
    return plan_attention(case.batch, HEADS.num_heads // HEADS.num_kv_heads, torch.float16, device, rule)


def attend(case: AttentionCase, plan: TritonPlan) -> torch.Tensor:
    query, key_cache, value_cache = (x.to(DEVICE) for x in (case.query, case.key_cache, case.value_cache))
    return triton_attention.paged_attention(query, key_cache, value_cache, plan, case.rules)


@pytest.mark.parametrize(
    ("rule", "steps"), [(WHOLE, [LONG, SHORT, LONG]), (SPLIT, [LONG, LONG[::-1]]), (SHARED, [READERS, LONG, READERS])]
)
def test_attends_as_the_plan_it_was_filled_from(rule: SplitRule, steps: list[list[SequenceLayout]]) -> None:
    cases = [case_of(layouts) for layouts in steps]
    fresh = [plan_of(case, rule, CPU) for case in cases]
    static = StaticPlan(PlanRoom.of(fresh[0], 24, rule), fresh[0], DEVICE)
    tiles = static.plan.tiles
    for case, plan in zip(cases, fresh, strict=True):
        static.fill(plan)
        assert torch.equal(attend(case, static.plan), attend(case, plan_of(case, rule, DEVICE)))
    assert static.plan.tiles is tiles


def test_what_does_not_fit_is_told() -> None:
    long, short = plan_of(case_of(LONG), SPLIT, CPU), plan_of(case_of(SHORT), SPLIT, CPU)
    room = PlanRoom.of(long, 24, SPLIT)
    assert room.fits(long)
    assert not room.fits(short)  # it merges nothing
    assert not room.fits(plan_of(case_of(LONG[:3]), SPLIT, CPU))
    assert not PlanRoom.of(long, 18, SPLIT).fits(long)  # its longest table has 19 blocks


@pytest.mark.parametrize("num_tokens", [1, 3, 8, 40])
@pytest.mark.parametrize("per_head", [1, 3, 8])
def test_there_is_room_for_whatever_decodes_there_are(num_tokens: int, per_head: int) -> None:
    """Long ones, short ones, and groups of readers, on GPUs of few and of many processors."""
    mixtures = [
        [SequenceLayout(4000, 1)] * num_tokens,
        [SequenceLayout(4000 if index == 0 else 3, 1) for index in range(num_tokens)],
        [SequenceLayout(3000 + index, 1, (("document", 2944),)) for index in range(num_tokens)],
        [SequenceLayout(1000 + index, 1, ((str(index // 2), 960),)) for index in range(num_tokens)],
    ]
    for layouts in mixtures:
        batch = build_case(layouts, Heads(1, 1, 1), 16, torch.float32).batch
        for num_programs in (1, 33, 264):
            for min_part_keys in (64, 512):
                rule = SplitRule(num_programs, min_part_keys, min_saved_keys=64)
                plan = plan_attention(batch, per_head, torch.float16, CPU, rule)
                assert PlanRoom.of(plan, 256, rule).fits(plan)
