"""Steps that fail: who is to blame is found and ended, everybody else's output is what it would have been."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.quarantine import DeviceOutOfMemory, EngineBroken
from engine.recovering import CALM_STEPS
from engine.request import Request, SamplingParams
from engine.step_plan import SchedulerOutput
from tests.engine.fake_runner import FakeDeviceError
from tests.engine.fakes import Harness, assert_as_alone, make_harness

LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def add_requests(harness: Harness, count: int) -> list[Request]:
    return [harness.add(str(index), [*range(1, 7), index + 1], LONG) for index in range(count)]


def poisoned(harness: Harness, *culprits: str, from_token: int = 0) -> None:
    """Let each step fail that computes a token of a culprit from a position on."""

    def fail(plan: SchedulerOutput) -> Exception | None:
        hit = any(
            share.request.request_id in culprits and share.num_computed_tokens + share.num_scheduled_tokens > from_token
            for share in plan.scheduled
        )
        return FakeDeviceError("poison") if hit else None

    harness.runner.fails_on = fail


@given(
    count=st.integers(1, 12),
    culprits=st.sets(st.integers(0, 11), max_size=3),
    from_token=st.integers(0, 16),
    budget=st.sampled_from([8, 16, 40]),
    num_blocks=st.sampled_from([6, 12, 60]),
)
def test_only_culprits_end(count: int, culprits: set[int], from_token: int, budget: int, num_blocks: int) -> None:
    harness = make_harness(token_budget=budget, num_blocks=num_blocks)
    requests = add_requests(harness, count)
    poisoned(harness, *map(str, culprits), from_token=from_token)
    finished = harness.run()
    assert len(finished) == count
    for index, request in enumerate(requests):
        if index in culprits:
            assert request.error is not None
            assert request.error.code == "step_failed"
        else:
            assert_as_alone(request)
    harness.assert_idle()


def test_culprit_of_eight_costs_a_few_steps() -> None:
    harness = make_harness(token_budget=64, num_blocks=60)
    add_requests(harness, 8)
    poisoned(harness, "5")
    failed_before = 0
    while "5" in harness.engine.lineup.unfinished:
        harness.step()
        failed_before += 1
    assert failed_before <= 8  # halves of 8: at most four that fail, and the sound halves between them


def test_newcomers_wait_for_the_verdict() -> None:
    harness = make_harness(token_budget=64, num_blocks=60)
    add_requests(harness, 4)
    poisoned(harness, "0", "1", "2", "3")
    harness.step()
    late = harness.add("late", [9, 9, 9], LONG)
    seen = len(harness.runner.plans)
    harness.run()
    together = [plan for plan in harness.runner.plans[seen:] if late in [s.request for s in plan.scheduled]]
    assert all(len(plan.scheduled) == 1 for plan in together)
    assert_as_alone(late)


def test_suspects_that_are_aborted_hold_nobody_up() -> None:
    harness = make_harness(token_budget=64, num_blocks=60)
    add_requests(harness, 4)
    late = harness.add("late", [9, 9, 9], LONG)
    poisoned(harness, "0")
    harness.step()
    for index in range(4):
        harness.engine.abort(str(index))
    harness.run()
    assert_as_alone(late)


def test_one_failure_out_of_the_blue_ends_nobody() -> None:
    harness = make_harness()
    request = harness.add("only", [1, 2, 3], LONG)
    harness.runner.num_failures = 1
    harness.run()
    assert_as_alone(request)


def test_model_that_fails_on_anything_is_the_engines_end() -> None:
    harness = make_harness()
    requests = add_requests(harness, 3)
    harness.runner.num_failures = 1
    harness.runner.probe_fails = True
    with pytest.raises(EngineBroken, match="the model fails on any step"):
        harness.engine.step()
    assert {request.request_id for request in requests} == set(harness.engine.lineup.unfinished)


# --- memory ---


def limited(harness: Harness, *, tokens: int, seqs: int = 100) -> None:
    """Let each step fail that is larger than the device."""

    def fail(plan: SchedulerOutput) -> Exception | None:
        too_large = plan.num_tokens > tokens or len(plan.scheduled) > seqs
        return DeviceOutOfMemory(f"no memory for {plan.num_tokens} tokens") if too_large else None

    harness.runner.fails_on = fail


@given(tokens=st.integers(4, 40), seqs=st.integers(1, 8), count=st.integers(1, 12))
def test_steps_shrink_until_they_fit(tokens: int, seqs: int, count: int) -> None:
    harness = make_harness(token_budget=40, num_blocks=60)
    requests = add_requests(harness, count)
    limited(harness, tokens=tokens, seqs=seqs)
    assert len(harness.run()) == count
    for request in requests:
        assert_as_alone(request)


def test_steps_grow_again() -> None:
    harness = make_harness(token_budget=40, num_blocks=120, max_model_len=400)
    limited(harness, tokens=10)
    for index in range(8):
        harness.add(str(index), [index + 1] * 5, SamplingParams(max_tokens=4, ignore_eos=True))
    harness.run()
    harness.runner.fails_on = lambda plan: None
    harness.add("long", [1, 2, 3], SamplingParams(max_tokens=3 * CALM_STEPS, ignore_eos=True))
    harness.run()
    harness.add("wide", [11] * 30, LONG)
    harness.step()
    assert harness.runner.plans[-1].num_tokens == 30


def test_only_what_never_fits_ends() -> None:
    harness = make_harness(token_budget=40, num_blocks=60)

    def fail(plan: SchedulerOutput) -> Exception | None:
        has_giant = any(share.request.request_id == "giant" for share in plan.scheduled)
        return DeviceOutOfMemory("no memory") if has_giant else None

    harness.runner.fails_on = fail
    requests = add_requests(harness, 3)
    giant = harness.add("giant", range(1, 20), LONG)
    requests.append(harness.add("after", [5, 5], LONG))
    harness.run()
    assert giant.error is not None
    assert giant.error.code == "out_of_memory"
    for request in requests:
        assert_as_alone(request)
