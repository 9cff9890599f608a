"""A drafter that must compute prompts is tried on one request first, and on others where that pays; on a fake clock."""

import random

import pytest

from engine.request import Request, SamplingParams
from engine.speculation.drafting_costs import (
    ASSUMED_ROUND,
    FORGETTING_STEPS,
    GROWTH_PER_DOUBLING,
    LEAST_PREFILL_TOKENS,
    DraftingCosts,
)
from engine.speculation.joining import (
    LEAST_TRIAL_TOKENS,
    MIN_RETURN,
    TRIAL_ROUNDS,
    TRIAL_SHARE,
    Candidate,
    Trials,
    worth_joining,
)
from tests.engine.fake_drafters import OracleDrafter, seconds_of, timed_harness
from tests.engine.fakes import FakeClock, Harness, assert_as_alone

PER_TOKEN = 0.01  # seconds, of a step of 1 s
START = FakeClock().now


def model_drafter(rate: float, round_seconds: float) -> OracleDrafter:
    return OracleDrafter(rate, round_seconds=round_seconds, prompt_token_seconds=round_seconds * PER_TOKEN)


@pytest.mark.parametrize("num_seqs", [1, 4])
@pytest.mark.parametrize(("rate", "round_seconds"), [(0.37, 0.8), (1.0, 1.1), (0.0, 0.1)])
def test_drafter_that_never_pays_costs_a_small_trial(rate: float, round_seconds: float, num_seqs: int) -> None:
    drafter = model_drafter(rate, round_seconds)
    plain, seconds = (
        seconds_of(one, PER_TOKEN, num_requests=24 * num_seqs, num_tokens=120, prompt_tokens=200, num_seqs=num_seqs)
        for one in (None, drafter)
    )
    assert 1 <= len(drafter.caught_up) <= 4
    assert plain / seconds > 0.995
    assert drafter.offered < 24 * num_seqs * 120 / 4  # while it is not earned, it is seldom looked at


@pytest.mark.parametrize("num_seqs", [1, 4])
def test_nothing_is_tried_before_it_is_earned(num_seqs: int) -> None:
    """So a few short requests never pay for finding out."""
    drafter = model_drafter(0.5, 0.8)
    plain, seconds = (
        seconds_of(one, PER_TOKEN, num_requests=3, num_tokens=50, prompt_tokens=200, num_seqs=num_seqs)
        for one in (None, drafter)
    )
    assert seconds == pytest.approx(plain)
    assert not drafter.caught_up


def serve(harness: Harness, num_requests: int, num_tokens: int = 150) -> list[Request]:
    """Let requests come two at a time, whenever there is nothing to do."""
    chance = random.Random(1)
    requests = []
    for index in range(num_requests):
        prompt = [1 + chance.randrange(20) for _ in range(100)]
        requests.append(harness.add(str(index), prompt, SamplingParams(max_tokens=num_tokens, ignore_eos=True)))
        if index % 2:
            harness.run()
    return requests


def seconds_between(request: Request) -> float:
    assert request.figures.admitted_at is not None
    assert request.figures.finished_at is not None
    return request.figures.finished_at - request.figures.admitted_at


def test_drafter_that_pays_soon_drafts_for_everybody() -> None:
    drafter = model_drafter(0.9, 0.1)
    requests = serve(timed_harness(drafter, PER_TOKEN), 16)
    first = int(next(iter(drafter.caught_up)))
    assert 8 <= first < 12  # after 600 to 900 steps
    assert drafter.caught_up.keys() >= {"12", "13", "14", "15"}
    assert seconds_between(requests[15]) < seconds_between(requests[0]) / 1.8


def test_drafter_that_begins_to_pay_is_found_out() -> None:
    drafter = model_drafter(0.0, 0.1)
    harness = timed_harness(drafter, PER_TOKEN)
    serve(harness, 48)
    assert 1 <= len(drafter.caught_up) <= 3
    before = harness.clock.now
    drafter.rate, drafter.caught_up = 0.9, {}
    serve(harness, 96)
    began = min(drafter.caught_up.values())
    assert began - before < 1.5 * (before - START)
    assert drafter.caught_up.keys() >= {"92", "93", "94", "95"}


def test_drafter_that_fails_at_a_prompt_ends_drafting(caplog: pytest.LogCaptureFixture) -> None:
    drafter = model_drafter(0.9, 0.1)
    drafter.error, drafter.fails_at = RuntimeError("no memory"), "catch_up"
    for request in serve(timed_harness(drafter, PER_TOKEN), 16):
        assert_as_alone(request)
    assert [record.message for record in caplog.records] == ["drafting failed; from now on nothing is drafted"]


def test_prompts_are_not_computed_for_requests_about_to_end() -> None:
    drafter = OracleDrafter(0.9, round_seconds=0.1, prompt_token_seconds=0.05)
    harness = timed_harness(drafter, PER_TOKEN)
    serve(harness, 32)
    drafter.caught_up.clear()
    serve(harness, 8, num_tokens=4)
    assert not drafter.caught_up
    serve(harness, 2)
    assert drafter.caught_up.keys() == {"0", "1"}


def test_trials_are_earned_and_stay_where_they_began() -> None:
    trials, step = Trials(), 2.0
    short, long = Candidate("short", LEAST_TRIAL_TOKENS - 1, 1.0), Candidate("long", LEAST_TRIAL_TOKENS, 6.0)
    cost = long.seconds + TRIAL_ROUNDS * step
    trials.earn(0.99 * cost / TRIAL_SHARE)
    assert trials.choose([short, long], step) is None
    trials.earn(0.02 * cost / TRIAL_SHARE)
    assert trials.choose([short], step) is None
    assert trials.choose([short, long], step) == "long"
    trials.pay(cost)
    other = Candidate("other", 100, 6.0)
    assert trials.choose([other, long], step) == "long"
    trials.earn(3.9 * cost / TRIAL_SHARE)
    assert trials.choose([other], step) is None  # half as much is earned now, and what was spent is still to be
    trials.earn(0.2 * cost / TRIAL_SHARE)
    assert trials.choose([other], step) == "other"
    trials.succeed()
    trials.give_up()
    assert trials.choose([other], step) is None
    trials.earn(1.01 * cost / TRIAL_SHARE)
    assert trials.choose([long], step) == "long"


def test_joining_pays_for_its_prompts() -> None:
    # Two requests that save half of each step together: a quarter of a step each, for each token that they get.
    cheap, dear = (
        Candidate("cheap", 40, 40 * 0.25 / MIN_RETURN - 0.01),
        Candidate("dear", 40, 40 * 0.25 / MIN_RETURN + 1),
    )
    assert worth_joining([dear, cheap], 1.0, 2.0, 1.0) == ["cheap"]
    assert worth_joining([cheap], 2.0, 2.0, 1.0) == []


def test_what_rounds_and_prompts_take_is_assumed_measured_and_forgotten() -> None:
    costs = DraftingCosts()
    assert costs.round_ratio(4, 2.0) == ASSUMED_ROUND
    costs.note_drafting(2, 3, 9.0)  # the first of its size
    assert costs.round_ratio(4, 2.0) == ASSUMED_ROUND
    costs.note_drafting(2, 3, 3.0)
    assert costs.is_measured
    assert costs.round_ratio(1, 2.0) == costs.round_ratio(2, 2.0) == 0.5
    assert costs.round_ratio(8, 2.0) == pytest.approx(0.5 * (1 + GROWTH_PER_DOUBLING) ** 2)
    assert costs.round_ratio(2, 1000.0) == 0.0
    for _ in range(10 * FORGETTING_STEPS):
        costs.note_step()
    assert costs.round_ratio(2, 2.0) == pytest.approx(ASSUMED_ROUND, abs=0.001)
    assert costs.catching_up_seconds(10, 2.0, 4) == 5.0
    costs.note_prefill(LEAST_PREFILL_TOKENS - 1, 1.0)
    assert costs.catching_up_seconds(10, 2.0, 4) == 5.0
    costs.note_prefill(100, 20.0)
    assert costs.catching_up_seconds(10, 2.0, 4) == 2.0
    costs.note_catching_up(50, 5.0)
    assert costs.catching_up_seconds(10, 2.0, 4) == 1.0
