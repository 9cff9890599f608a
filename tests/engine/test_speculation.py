"""What is drafted, and when nothing is: prompt lookup, estimates, costs, allotment; all together on a fake clock."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import SamplingParams
from engine.speculation.acceptance import Acceptance
from engine.speculation.allotting import MIN_SPEEDUP, Chance, allot
from engine.speculation.prompt_lookup import LONGEST_MATCH, SHORTEST_MATCH, PromptLookup, follow
from engine.speculation.speculation import REMEASURE_STEPS
from engine.speculation.speculator import Offer
from engine.speculation.step_costs import ASSUMED_PER_TOKEN, FORGETTING_STEPS, LEARNED_SHARE, StepCosts
from tests.engine.fake_drafters import OracleDrafter, seconds_of, timed_harness
from tests.engine.fake_model import generate_alone
from tests.engine.fakes import assert_as_alone, make_request


def naive_follow(tokens: Sequence[int], most: int) -> tuple[tuple[int, ...], int]:
    """Try every place."""
    n = len(tokens)

    def match(end: int) -> int:
        length = 0
        while length < LONGEST_MATCH and length <= end and tokens[end - length] == tokens[n - 1 - length]:
            length += 1
        return length

    length, end = max(((match(end), end) for end in range(n - 1)), default=(0, 0))
    if length < SHORTEST_MATCH:
        return (), 0
    draft = list(tokens)
    for position in range(end + 1, end + 1 + most):
        draft.append(draft[position])
    return tuple(draft[n:]), length


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 9))
def test_follows_the_longest_and_latest_match(tokens: list[int], most: int) -> None:
    assert follow(np.array(tokens, dtype=np.int32), most) == naive_follow(tokens, most)


def test_prompt_lookup_sees_tokens_that_came_since() -> None:
    lookup, request = PromptLookup(), make_request([5, 6, 7, 8, 9, 1, 5])
    assert lookup.offer(request, 3) is None
    request.token_ids.append(6)
    assert lookup.offer(request, 3) == Offer(3, 2, 7)
    assert lookup.draft({"r": 2}, {"r": request}) == {"r": (7, 8)}
    lookup.retain(())
    assert lookup.offer(request, 9) == Offer(9, 2, 7)
    assert lookup.draft({"r": 9}, {"r": request}) == {"r": (7, 8, 9, 1, 5, 6, 7, 8, 9)}  # taken to go on


def test_acceptance_goes_from_what_is_assumed_to_what_happens_and_back() -> None:
    acceptance = Acceptance(20)
    assert acceptance.rate(0.5) == 0.5
    for _ in range(30):
        acceptance.note(0, 1)
    low = acceptance.rate(0.5)
    assert low < 0.11
    for _ in range(1000):
        acceptance.fade()
    assert acceptance.rate(0.5) > 0.45
    for _ in range(20):
        acceptance.note(8, 8)
    assert acceptance.rate(0.5) > 0.9


def test_costs_are_assumed_measured_and_forgotten() -> None:
    costs = StepCosts()
    assert costs.plain_seconds(2) is None
    costs.note(2, 0, 9.0)  # the first of its size
    costs.note(2, 0, 1.0)
    assert costs.plain_seconds(2) == 1.0
    assert costs.plain_seconds(3) is None
    assert costs.ratio(2, 4) == 1 + 4 * ASSUMED_PER_TOKEN
    costs.note(2, 3, 7.0)
    assert costs.ratio(2, 4) == 1 + 4 * ASSUMED_PER_TOKEN
    costs.note(2, 4, 2.0)
    assert costs.ratio(2, 3) == costs.ratio(2, 4) == 2.0
    # Other numbers of tokens: half of what one took there. Another batch: unknown.
    assert costs.ratio(2, 5) == pytest.approx(1 + 5 * LEARNED_SHARE * (2.0 - 1.0) / 4)
    assert costs.ratio(3, 5) == 1 + 5 * ASSUMED_PER_TOKEN
    costs.note(2, 4, 50.0)  # a busy moment
    assert costs.ratio(2, 4) == 7.0
    for _ in range(3):
        costs.note(2, 4, 2.0)
    assert costs.ratio(2, 4) == 2.0
    for _ in range(10 * FORGETTING_STEPS):
        costs.note(2, 0, 1.0)
    assert costs.ratio(2, 4) == pytest.approx(1 + 4 * ASSUMED_PER_TOKEN, abs=0.01)
    assert costs.ratio(2, 8) == pytest.approx(1 + 8 * ASSUMED_PER_TOKEN, abs=0.01)
    assert costs.plain_age(2) == 0
    for _ in range(3):
        costs.note(2, 4, 0.5)  # it would not take longer without drafts
    assert costs.plain_seconds(2) == 0.5
    assert costs.plain_age(2) == 3
    assert costs.plain_age(5) > FORGETTING_STEPS


chances = st.dictionaries(
    st.sampled_from("abcd"), st.builds(Chance, st.integers(1, 6), st.floats(0.0, 1.0)), min_size=1
)


@given(chances, st.integers(-1, 12), st.floats(0.0, 0.5), st.sampled_from([0.0, 0.1, 0.7]))
def test_allotment_is_the_best_there_is(
    chances: dict[str, Chance], room: int, per_token: float, round_ratio: float
) -> None:
    def speedup(allotted: Mapping[str, int]) -> float:
        expected = sum(chances[key].rate ** place for key, k in allotted.items() for place in range(1, k + 1))
        cost = 1 + per_token * sum(allotted.values()) + round_ratio * max(allotted.values(), default=0)
        return (len(chances) + expected) / len(chances) / cost

    allotment = allot(chances, len(chances), room, lambda number: 1 + per_token * number, round_ratio)
    allotted = allotment.num_tokens
    assert sum(allotted.values()) <= max(0, room)
    assert all(1 <= number <= chances[key].num_tokens for key, number in allotted.items())
    assert allotment.speedup == pytest.approx(speedup(allotted))
    best = max(speedup(allotted), MIN_SPEEDUP)
    assert not allotted or speedup(allotted) > MIN_SPEEDUP
    for key, chance in chances.items():  # no single change is better
        for number in range(chance.num_tokens + 1):
            changed = {**allotted, key: number}
            if sum(changed.values()) <= max(0, room):
                assert speedup(changed) <= best + 1e-9


@pytest.mark.parametrize(
    ("rate", "per_token", "round_seconds", "num_requests", "least"),
    [
        (1.0, 0.01, 0.0, 1, 3.5),  # always right and almost free
        (0.7, 0.05, 0.0, 3, 1.4),
        (0.9, 0.02, 0.1, 1, 2.0),  # a draft model
        (0.0, 0.01, 0.0, 1, 0.97),  # never right: off after a few tries
        (0.0, 0.05, 0.5, 1, 0.95),
        (0.3, 1.0, 0.0, 4, 0.95),  # a token costs as much as a step: the device is busy as it is
        (1.0, 1.0, 0.0, 8, 0.95),
    ],
)
def test_speculation_pays_or_turns_itself_off(
    rate: float, per_token: float, round_seconds: float, num_requests: int, least: float
) -> None:
    plain = seconds_of(None, per_token=per_token, num_requests=num_requests)
    drafter = OracleDrafter(rate, round_seconds=round_seconds)
    seconds = seconds_of(drafter, per_token=per_token, num_requests=num_requests)
    assert plain / seconds > least


def test_what_drafts_cost_is_measured_again_now_and_then() -> None:
    harness = timed_harness(OracleDrafter(1.0), per_token=0.0)
    harness.add("r", [1, 2, 3], SamplingParams(max_tokens=600, ignore_eos=True))
    harness.run()
    plain = [index for index, plan in enumerate(harness.runner.plans) if plan.num_tokens == 1]
    gaps = np.diff(plain)
    assert gaps.max() == REMEASURE_STEPS + 1
    assert len(plain) < len(harness.runner.plans) / 20


@pytest.mark.parametrize("method", ["offer", "draft", "retain"])
def test_drafter_that_fails_ends_drafting_and_nothing_else(method: str, caplog: pytest.LogCaptureFixture) -> None:
    drafter = OracleDrafter(1.0, error=RuntimeError("no memory"), fails_at=method)
    harness = timed_harness(drafter, per_token=0.0)
    requests = [
        harness.add(name, [1, 2, 3], SamplingParams(max_tokens=num_tokens, ignore_eos=True))
        for name, num_tokens in (("short", 20), ("long", 40))
    ]
    harness.run()
    for request in requests:
        assert_as_alone(request)
    assert [record.message for record in caplog.records] == ["drafting failed; from now on nothing is drafted"]


def test_draft_ends_before_a_stop_token() -> None:
    whole = generate_alone([1, 2, 3], SamplingParams(max_tokens=40, ignore_eos=True))[0]
    harness = timed_harness(OracleDrafter(1.0), per_token=0.0)
    params = SamplingParams(max_tokens=40, ignore_eos=True, min_tokens=40, stop_token_ids=frozenset(whole[6:7]))
    harness.add("r", [1, 2, 3], params)
    harness.run()
    drafts = [share.draft for plan in harness.runner.plans for share in plan.scheduled]
    assert any(drafts)
    assert not any(whole[6] in draft for draft in drafts)


def test_fruitless_offers_are_asked_for_less_often() -> None:
    drafter = OracleDrafter(0.0)
    seconds_of(drafter, per_token=0.1)
    assert drafter.offered < 150
    assert drafter.drafted < 20
