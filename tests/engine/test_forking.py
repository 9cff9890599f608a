"""Several outputs of one prompt: the prompt computed once, its blocks shared, and each output what it is alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from engine.forking import MAX_OUTPUTS, Output, seed_of_output
from engine.request import FinishReason, Request, RequestError, SamplingParams
from tests.engine.fake_model import NAN_TOKEN
from tests.engine.fakes import Harness, assert_as_alone, make_harness

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def outputs(count: int, max_tokens: int = 6) -> list[Output]:
    """Return outputs that differ in their seeds."""
    params = replace(PARAMS, max_tokens=max_tokens)
    return [Output(replace(params, seed=seed_of_output(7, index))) for index in range(count)]


def add_group(harness: Harness, prompt: Iterable[int], wanted: Sequence[Output], name: str = "g") -> list[Request]:
    return list(harness.engine.add_group(name, list(prompt), wanted))


def computed_tokens(harness: Harness) -> int:
    return sum(plan.num_tokens for plan in harness.runner.plans)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_prompt_tokens", [800, 805])
def test_a_prompt_is_computed_once_and_held_once(num_prompt_tokens: int, caching: bool) -> None:
    harness = make_harness(
        num_blocks=80,
        max_model_len=1024,
        block_size=16,
        token_budget=512,
        enable_prefix_caching=caching,
    )
    max_tokens = 40
    group = add_group(harness, (token % 30 for token in range(num_prompt_tokens)), outputs(4, max_tokens=max_tokens))
    finished = harness.run()
    assert sorted(finished) == ["g", "g#1", "g#2", "g#3"]
    for request in group:
        assert_as_alone(request)
    assert len({tuple(request.output_token_ids) for request in group}) == 4
    # The last token of an output is never computed. Each fork begins with the prompt's last token, for its logits.
    assert computed_tokens(harness) == num_prompt_tokens + 3 + 4 * (max_tokens - 1)
    # The last output token has no slot. The first of the blocks of one's own begins as a copy of the prompt's last one,
    # where the next token goes; of a prompt that fills its blocks, where its last token goes.
    shared = (num_prompt_tokens - 1) // 16
    each_own = -(-(num_prompt_tokens + max_tokens - 1) // 16) - shared
    figures = group[0].group.figures if group[0].group is not None else None
    assert figures is not None
    assert figures.kv_blocks_peak == shared + 4 * each_own
    assert sum(len(plan.transfers) for plan in harness.runner.plans) == 3
    harness.assert_idle()


def test_the_first_output_is_the_one_without_others() -> None:
    alone, together = make_harness(), make_harness()
    request = alone.add("r", range(1, 11), replace(PARAMS, seed=7))
    alone.run()
    group = add_group(together, range(1, 11), outputs(3))
    together.run()
    assert group[0].output_token_ids == request.output_token_ids
    assert seed_of_output(7, 0) == 7
    assert len({seed_of_output(seed, index) for seed in (0, 7, 2**63 - 1) for index in range(MAX_OUTPUTS)}) == 48


@pytest.mark.parametrize("caching", [True, False])
def test_one_token_of_each(caching: bool) -> None:
    """The request that computed the prompt ends with the very step that the others need it for."""
    harness = make_harness(enable_prefix_caching=caching)
    group = add_group(harness, range(1, 12), outputs(5, max_tokens=1))
    harness.run()
    for request in group:
        assert_as_alone(request)
    assert computed_tokens(harness) == 11 + 4
    harness.assert_idle()


def test_others_are_not_held_up_by_those_that_stand_aside() -> None:
    harness = make_harness(token_budget=32)
    add_group(harness, range(1, 12), outputs(4))
    harness.add("other", range(12, 20), PARAMS)
    harness.step()
    assert [share.request.request_id for share in harness.runner.plans[0].scheduled] == ["g", "other"]
    harness.step()
    names = [share.request.request_id for share in harness.runner.plans[1].scheduled]
    assert names == ["g", "other", "g#1", "g#2", "g#3"]


def test_more_outputs_than_a_step_may_hold_take_turns() -> None:
    harness = make_harness(max_num_seqs=3)
    group = add_group(harness, range(1, 11), outputs(8))
    harness.run()
    for request in group:
        assert_as_alone(request)
    assert max(len(plan.scheduled) for plan in harness.runner.plans) == 3
    assert computed_tokens(harness) == 10 + 7 + 8 * 5  # nobody was preempted, nothing computed again
    harness.assert_idle()


@pytest.mark.parametrize("caching", [True, False])
def test_a_group_larger_than_the_pool_is_served_in_turns(caching: bool) -> None:
    harness = make_harness(num_blocks=6, enable_prefix_caching=caching)
    group = add_group(harness, range(1, 15), outputs(8, max_tokens=10))
    harness.run()
    for request in group:
        assert_as_alone(request)
    assert sum(request.figures.preemptions for request in group) > 0
    # Those preempted come back on the blocks of one that runs: nobody computes what another one has.
    for plan in harness.runner.plans:
        starts = [share.num_computed_tokens for share in plan.scheduled]
        assert max(starts) < 14 or min(starts) >= 13
    harness.assert_idle()


def test_a_group_of_which_one_could_never_fit_is_refused_as_a_whole() -> None:
    harness = make_harness(num_blocks=4)
    wanted = [*outputs(2), Output(replace(PARAMS, max_tokens=12))]
    with pytest.raises(RequestError, match="together 17, above the KV cache's 16") as raised:
        add_group(harness, range(1, 6), wanted)
    assert raised.value.code == "kv_capacity"
    assert not harness.engine.has_work
    harness.assert_idle()


@pytest.mark.parametrize("count", [0, MAX_OUTPUTS + 1])
def test_the_number_of_outputs_is_bounded(count: int) -> None:
    harness = make_harness()
    with pytest.raises(RequestError, match=f"n is {count}; it must be between 1 and 16"):
        add_group(harness, range(1, 6), outputs(count))


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_one_is_aborted(num_steps: int, victim: int) -> None:
    """Whoever goes, and whenever: with the prompt half computed, or while the others wait for it."""
    harness = make_harness(token_budget=8)
    group = add_group(harness, range(1, 20), outputs(4))
    for _ in range(num_steps):
        harness.step()
    assert harness.engine.abort(group[victim].request_id) is group[victim]
    harness.engine.lineup.check_integrity()
    harness.run()
    for request in group:
        if request is not group[victim]:
            assert_as_alone(request)
    assert group[victim].finish_reason is FinishReason.CANCELLED
    harness.assert_idle()


@pytest.mark.parametrize("num_steps", range(6))
def test_all_are_aborted(num_steps: int) -> None:
    harness = make_harness(token_budget=8)
    group = add_group(harness, range(1, 20), outputs(4))
    for _ in range(num_steps):
        harness.step()
    for request in group:
        harness.engine.abort(request.request_id)
        harness.engine.lineup.check_integrity()
    assert not harness.engine.has_work
    harness.assert_idle()


def test_a_prompt_that_is_not_finite_ends_each_of_its_outputs() -> None:
    harness = make_harness()
    group = add_group(harness, [1, 2, 3, 4, 5, NAN_TOKEN, 6], outputs(3))
    neighbour = harness.add("other", range(1, 6), PARAMS)
    harness.run()
    assert [request.error.code for request in group if request.error is not None] == ["numerical_error"] * 3
    assert_as_alone(neighbour)
    harness.assert_idle()


def test_a_step_that_fails_starts_all_over() -> None:
    harness = make_harness(enable_prefix_caching=False)
    group = add_group(harness, range(1, 11), outputs(4))
    for _ in range(3):
        harness.step()
    harness.runner.num_failures = 1
    harness.step()
    harness.run()
    for request in group:
        assert_as_alone(request)
    harness.assert_idle()


def test_one_without_others_is_a_group_too() -> None:
    harness = make_harness()
    (request,) = add_group(harness, range(1, 11), outputs(1))
    harness.run()
    assert_as_alone(request)
    assert request.group is not None
    assert request.group.figures.kv_blocks_peak == request.figures.kv_blocks_peak
    assert request.group.figures.kv_block_seconds == pytest.approx(request.figures.kv_block_seconds)
