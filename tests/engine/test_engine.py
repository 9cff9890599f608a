"""The engine: failures that end one request or none, and the figures of each request."""

import pytest

from engine.request import FinishReason, RequestState, SamplingParams
from engine.status import EngineStatus
from tests.engine.fake_model import NAN_TOKEN, generate_alone, next_token
from tests.engine.fakes import Harness, assert_as_alone, make_harness

LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def test_step_without_work_runs_nothing() -> None:
    harness = make_harness()
    assert not harness.engine.has_work
    assert harness.step() == []
    assert harness.runner.plans == []


@pytest.mark.parametrize("prompt_length", range(1, 10))
def test_stops_as_asked(prompt_length: int) -> None:
    """Whatever ends them, requests end as the fake model alone says."""
    harness = make_harness()
    prompt = range(1, 1 + prompt_length)
    free_running, _ = generate_alone(prompt, LONG)
    params = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=12, stop_token_ids=frozenset(free_running[3:5])),
        SamplingParams(max_tokens=12, min_tokens=6, stop_token_ids=frozenset(range(31))),
        SamplingParams(max_tokens=12, ignore_eos=True, stop=("ax", "b")),
        SamplingParams(max_tokens=12, min_tokens=5, stop=("a", "c", "e", "g")),
        SamplingParams(max_tokens=1),
    ]
    requests = [harness.add(str(index), prompt, each) for index, each in enumerate(params)]
    assert len(harness.run()) == len(params)
    for request in requests:
        assert_as_alone(request)


# --- a step that fails ---


@pytest.mark.parametrize("failing_step", range(1, 8))
def test_runner_that_raises_loses_nothing(failing_step: int) -> None:
    harness = make_harness(token_budget=8)
    requests = [harness.add(str(index), [*range(1, 9), index], LONG) for index in range(4)]
    for _ in range(failing_step - 1):
        harness.step()
    outputs = [request.output_token_ids for request in requests]
    harness.runner.num_failures = 1
    assert harness.step() == []
    status = harness.engine.status()
    assert (status.num_running, status.num_waiting, status.blocks_held, status.blocks_cached) == (0, 4, 0, 0)
    assert [request.output_token_ids for request in requests] == outputs  # known tokens stay known
    assert set(harness.run()) == {"0", "1", "2", "3"}
    for request in requests:
        assert_as_alone(request)


def test_failing_again_and_again_still_loses_nothing() -> None:
    harness = make_harness(num_blocks=6)
    requests = [harness.add(str(index), range(index, index + 6), LONG) for index in range(5)]
    for round_number in range(30):
        harness.runner.num_failures = int(round_number % 10 == 1)
        harness.step()
    harness.run()
    for request in requests:
        assert_as_alone(request)
    harness.assert_idle()


def test_half_written_blocks_of_a_failed_step_are_not_hit() -> None:
    harness = make_harness(token_budget=32)
    harness.add("a", range(1, 14), LONG)
    harness.runner.num_failures = 1
    harness.step()
    harness.engine.abort("a")
    same = harness.add("b", range(1, 14), LONG)
    harness.step()
    assert same.figures.prefix_hit_tokens == 0
    harness.run()
    assert_as_alone(same)


# --- a request whose numbers are not finite ---


def assert_all_finite(harness: Harness) -> None:
    assert None not in harness.runner.slots


def test_numerical_error_ends_only_its_own_request() -> None:
    harness = make_harness(token_budget=32)
    prefix = range(1, 9)
    good = harness.add("good", [*prefix, 9], LONG)
    bad = harness.add("bad", [*prefix, NAN_TOKEN, 9], LONG)
    also_good = harness.add("also good", [*prefix, 10], LONG)
    assert harness.step() == [bad]
    assert (bad.finish_reason, bad.output_token_ids, bad.state) == (FinishReason.ERROR, [], RequestState.FINISHED)
    assert bad.error is not None
    assert bad.error.code == "numerical_error"
    assert len(harness.run()) == 2
    assert_as_alone(good)
    assert_as_alone(also_good)
    harness.assert_idle()


def test_blocks_of_a_failed_request_are_scrubbed_and_forgotten() -> None:
    harness = make_harness(token_budget=32)
    harness.add("bad", [1, NAN_TOKEN, 2, 3, 4, 5, 6], LONG)
    harness.step()
    assert_all_finite(harness)
    assert harness.engine.status().blocks_cached == 0
    again = harness.add("again", [1, NAN_TOKEN, 2, 3, 4, 5, 6], LONG)
    harness.step()
    assert again.figures.prefix_hit_tokens == 0
    assert again.finish_reason is FinishReason.ERROR


def test_blocks_shared_by_requests_that_fail_together_are_scrubbed() -> None:
    harness = make_harness(num_blocks=4, token_budget=32)
    prefix = [1, 2, NAN_TOKEN, 4, 5, 6, 7, 8]
    few = SamplingParams(max_tokens=4)
    harness.add("a", [*prefix, 9], few)
    harness.add("b", [*prefix, 10], few)
    assert [request.request_id for request in harness.step()] == ["a"]
    assert_all_finite(harness)
    assert [request.request_id for request in harness.step()] == ["b"]  # given a second try, without a's blocks
    assert_all_finite(harness)
    innocent = harness.add("c", [1, 2, 3], LONG)
    harness.run()
    assert_as_alone(innocent)


def test_request_that_shares_a_sound_prefix_with_a_failing_one_starts_over() -> None:
    """In one step: the failing request's chunk is not finite even before the token that is to blame."""
    harness = make_harness(token_budget=64)
    prefix = range(1, 9)
    harness.add("bad", [*prefix, NAN_TOKEN], LONG)
    sharing = [harness.add(name, [*prefix, index], LONG) for index, name in enumerate("abc")]
    assert [request.request_id for request in harness.step()] == ["bad"]
    assert_all_finite(harness)
    harness.step()
    assert [share.request for share in harness.runner.plans[-1].scheduled] == sharing
    harness.run()
    for request in sharing:
        assert_as_alone(request)


def test_what_a_request_wrote_before_it_started_over_is_not_hit() -> None:
    harness = make_harness(token_budget=64)
    prefix, own = range(1, 9), range(10, 19)
    harness.add("bad", [*prefix, NAN_TOKEN], LONG)
    harness.add("a", [*prefix, *own], LONG)
    harness.run()
    same = harness.add("b", [*prefix, *own], LONG)
    harness.run()
    assert same.figures.prefix_hit_tokens == 16
    assert_as_alone(same)


def test_blocks_shared_with_a_healthy_request_keep_their_content() -> None:
    harness = make_harness(token_budget=32)
    prefix = range(1, 9)
    healthy = harness.add("healthy", [*prefix, 9], LONG)
    harness.step()
    harness.add("bad", [*prefix, NAN_TOKEN], LONG)
    harness.step()
    assert not set(harness.runner.scrubbed) & set(healthy.held_block_ids)
    harness.run()
    assert_as_alone(healthy)
    assert_all_finite(harness)


def test_request_fails_at_the_chunk_that_is_not_finite() -> None:
    """Not only at the sampling one: an abort or a preemption in between would leave its blocks behind unseen."""
    harness = make_harness(token_budget=8)
    harness.add("bad", [NAN_TOKEN, *range(1, 16)], LONG)
    assert [request.request_id for request in harness.step()] == ["bad"]
    assert_all_finite(harness)
    harness.assert_idle()


def test_what_a_failed_step_wrote_is_scrubbed() -> None:
    harness = make_harness()
    harness.add("bad", [1, NAN_TOKEN], LONG)
    harness.runner.num_failures = 1
    harness.step()
    assert_all_finite(harness)


# --- figures ---


def test_times_on_the_engines_clock() -> None:
    harness = make_harness(max_num_seqs=1, token_budget=4)

    def a_step_takes_a_second() -> None:
        harness.clock.now += 1.0

    harness.runner.on_run = a_step_takes_a_second
    first = harness.add("a", range(1, 8), SamplingParams(max_tokens=3, ignore_eos=True))
    second = harness.add("b", [1], SamplingParams(max_tokens=1))
    harness.run()
    assert (first.figures.arrived_at, first.figures.admitted_at) == (100.0, 100.0)
    assert first.figures.token_times == [102.0, 103.0, 104.0]  # two chunks to the first
    assert first.figures.finished_at == 104.0
    assert (second.figures.arrived_at, second.figures.admitted_at) == (100.0, 104.0)
    assert second.figures.token_times == [105.0]


def test_blocks_and_block_seconds() -> None:
    harness = make_harness(token_budget=4, max_num_seqs=4)

    def a_step_takes_a_second() -> None:
        harness.clock.now += 1.0

    harness.runner.on_run = a_step_takes_a_second
    request = harness.add("a", range(1, 8), SamplingParams(max_tokens=3, ignore_eos=True))
    harness.run()
    # Steps over 4, 7, 8 and 9 known tokens: one block, two, two, three.
    assert request.figures.kv_blocks_peak == 3
    assert request.figures.kv_block_seconds == 1 + 2 + 2 + 3
    assert request.figures.computed_tokens == 9
    hit = harness.add("b", range(1, 8), SamplingParams(max_tokens=1))
    harness.run()
    assert hit.figures.prefix_hit_tokens == 4
    assert hit.figures.computed_tokens == 3
    assert hit.figures.kv_blocks_peak == 2
    assert hit.figures.kv_block_seconds == 2


def test_a_shared_block_counts_for_each_holder() -> None:
    harness = make_harness(token_budget=32)
    requests = [harness.add(name, range(1, 10), LONG) for name in "ab"]
    harness.run()
    assert [request.figures.kv_blocks_peak for request in requests] == [5, 5]
    held = (len({b for s in plan.scheduled for b in s.request.held_block_ids}) for plan in harness.runner.plans)
    assert max(held) <= 8


def test_preemptions_and_recomputed_tokens() -> None:
    harness = make_harness(num_blocks=5, enable_prefix_caching=False)
    oldest = harness.add("a", range(1, 8), LONG)
    newest = harness.add("b", range(11, 18), LONG)
    harness.run()
    assert oldest.figures.preemptions == 0
    assert oldest.figures.computed_tokens == oldest.num_tokens - 1
    assert newest.figures.preemptions >= 1
    assert newest.figures.computed_tokens > newest.num_tokens - 1
    assert len(newest.figures.token_times) == newest.num_output_tokens
    assert newest.figures.token_times == sorted(newest.figures.token_times)
    assert newest.figures.admitted_at is not None


def test_status_counts() -> None:
    harness = make_harness(token_budget=16, max_num_seqs=1, num_blocks=8)
    harness.add("a", range(1, 10), SamplingParams(max_tokens=2, ignore_eos=True))
    harness.add("b", [1], SamplingParams(max_tokens=1))
    harness.step()
    assert harness.engine.status() == EngineStatus(
        num_waiting=1,
        num_running=1,
        blocks_held=3,
        blocks_cached=2,
        num_blocks=8,
        steps=1,
        computed_tokens=9,
        output_tokens=1,
        preemptions=0,
    )
    harness.run()
    status = harness.engine.status()
    assert (status.steps, status.computed_tokens, status.num_waiting, status.num_running) == (3, 11, 0, 0)


def test_prompt_is_not_the_callers_list() -> None:
    harness = make_harness()
    prompt = [1, 2, 3]
    request = harness.engine.add("a", prompt, LONG)
    harness.run()
    assert prompt == [1, 2, 3]
    assert request.output_token_ids[0] == next_token(prompt)
