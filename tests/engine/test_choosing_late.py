"""Asynchronous scheduling of requests that choose by their output: a step's forward runs ahead, its choosing waits."""

import logging

import pytest

from engine.forking import Output
from engine.quarantine import DeviceOutOfMemory
from engine.request import FinishReason, SamplingParams
from tests.engine.ahead import LONG, aheads, assert_all_as_alone, make_ahead
from tests.engine.fake_model import FakeGrammar, generate_alone
from tests.engine.fakes import Harness, assert_as_alone

PENALIZED = SamplingParams(max_tokens=12, ignore_eos=True, presence_penalty=0.5)
GRAMMAR = FakeGrammar()


def add_mixed(harness: Harness) -> None:
    """Add a request that chooses by its output among others that do not."""
    harness.add("plain", [1, 2, 3], LONG)
    harness.add("penalized", [4, 5, 6], PENALIZED)
    harness.add("other", [7, 8], LONG)


@pytest.mark.parametrize(
    ("params", "grammar"),
    [
        (SamplingParams(max_tokens=6, presence_penalty=0.5), None),
        (SamplingParams(max_tokens=6, frequency_penalty=0.5), None),
        (SamplingParams(max_tokens=6, repetition_penalty=1.5), None),
        (SamplingParams(max_tokens=6), GRAMMAR),
        (SamplingParams(max_tokens=6, repetition_penalty=1.5), GRAMMAR),
    ],
    ids=["presence", "frequency", "repetition", "grammar", "both"],
)
def test_steps_with_who_chooses_by_its_output_run_ahead(params: SamplingParams, grammar: FakeGrammar | None) -> None:
    harness = make_ahead(token_budget=8)
    other = harness.add("other", [4, 5, 6], LONG)
    harness.step()
    asking = harness.add("asking", range(1, 20), params, grammar=grammar)
    harness.run()
    assert_all_as_alone((asking, other))
    assert aheads(harness).count(False) == 1
    late = [plan for plan, is_late in zip(harness.runner.plans, harness.runner.chose_late, strict=True) if is_late]
    # Its prompt takes steps of its own, and its first token depends on no other.
    assert len(late) == asking.num_output_tokens - 1
    assert all(asking in plan.requests for plan in late)


def test_a_step_chooses_when_the_one_before_is_known_and_no_later() -> None:
    harness = make_ahead()
    request = harness.add("one", [1, 2, 3], PENALIZED)
    harness.step()
    assert harness.runner.chose_late == [False, True]
    assert (request.num_output_tokens, request.num_pending_tokens) == (1, 1)
    assert harness.engine.abort("one") is request
    assert request.output_token_ids == generate_alone([1, 2, 3], PENALIZED)[0][:2]


def test_who_ended_in_the_step_before_chooses_in_vain() -> None:
    harness = make_ahead()
    alone, _ = generate_alone([1, 2, 3], PENALIZED, grammar=GRAMMAR)
    ends = frozenset({alone[2]})
    params = SamplingParams(max_tokens=12, ignore_eos=True, presence_penalty=0.5, stop_token_ids=ends)
    request = harness.add("ending", [1, 2, 3], params, grammar=FakeGrammar(ends))
    other = harness.add("other", [4, 5, 6], PENALIZED)
    harness.run()
    assert request.finish_reason is FinishReason.STOP
    assert harness.runner.scrubbed == []  # nothing was wrong
    assert_all_as_alone((request, other))


def test_a_grammar_that_fails_ends_its_own_request() -> None:
    harness = make_ahead()
    add_mixed(harness)
    failing = harness.add("failing", [9, 9, 9], LONG, grammar=FakeGrammar(fails_at=4))
    finished = harness.run()
    assert failing.error is not None
    assert failing.error.code == "grammar_failed"
    assert failing.num_output_tokens == 4
    assert_all_as_alone(finished.values())
    assert all(request.figures.preemptions == 0 for request in finished.values())


def test_a_step_that_cannot_choose_is_recovered_from(caplog: pytest.LogCaptureFixture) -> None:
    harness = make_ahead()
    add_mixed(harness)
    harness.step()
    requests = [*harness.engine.lineup.unfinished.values()]
    harness.runner.choosing_errors.append(RuntimeError("no way to choose"))
    assert harness.step() == []
    assert [request.num_output_tokens for request in requests] == [2, 2, 2]  # of the step before
    assert harness.engine.status().num_running == 0
    harness.run()
    assert [message for message in caplog.messages if "failed" in message] == ["a step of 3 requests failed"]
    assert_all_as_alone(requests)
    harness.assert_idle()


def test_without_memory_to_choose_beside_another_step_steps_are_taken_in_turn() -> None:
    harness = make_ahead()
    add_mixed(harness)
    harness.step()
    harness.runner.choosing_errors.append(DeviceOutOfMemory("logits are large"))
    finished = harness.run()
    assert set(finished) == {"plain", "penalized", "other"}
    assert_all_as_alone(finished.values())
    assert not any(aheads(harness)[3:])


def test_a_step_that_fails_takes_along_the_one_that_was_to_choose(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness = make_ahead()
    add_mixed(harness)
    harness.step()
    harness.runner.num_late_failures = 1
    harness.step()
    harness.step()
    assert harness.runner.chose_late == [False, True, True, True]
    assert harness.engine.status().num_running == 0
    assert "a step launched ahead failed too" not in caplog.messages
    assert_all_as_alone(harness.run().values())


# --- Several outputs of one prompt ---


def test_outputs_of_one_prompt_run_ahead_when_all_have_it() -> None:
    harness = make_ahead()
    requests = harness.engine.add_group("group", [1, 2, 3, 4, 5], [Output(LONG), Output(PENALIZED, GRAMMAR)])
    harness.run()
    # The prompt, and the first token of the one that waited for it.
    assert aheads(harness) == [False, False, *[True] * 11]
    assert_all_as_alone(requests)
    harness.assert_idle()


def test_outputs_that_wait_for_a_prompt_get_it_when_it_is_there() -> None:
    """The others come up when its last chunk is planned, ahead of the one that is taken in next."""
    harness = make_ahead(token_budget=8)
    requests = harness.engine.add_group("group", range(1, 14), [Output(LONG), Output(LONG), Output(PENALIZED)])
    harness.step()
    assert [plan.num_tokens for plan in harness.runner.plans] == [8, 5]
    assert aheads(harness) == [False, True]
    assert not any(request.block_tables for request in requests[1:])
    harness.run()
    assert aheads(harness).count(False) == 2
    assert [request.figures.computed_tokens for request in requests] == [13 + 11, 1 + 11, 1 + 11]
    assert_all_as_alone(requests)
    harness.assert_idle()


def test_an_output_that_comes_late_shares_a_prompt_whose_request_is_under_way() -> None:
    harness = make_ahead(max_num_seqs=2)
    harness.add("first", [9, 9, 9], SamplingParams(max_tokens=3, ignore_eos=True))
    holder, late = harness.engine.add_group("group", [1, 2, 3], [Output(LONG), Output(LONG)])
    harness.run()
    assert aheads(harness).count(False) == 1
    assert [len(plan.transfers) for plan in harness.runner.plans].count(1) == 1  # the copy of the block they share
    assert (holder.figures.computed_tokens, late.figures.computed_tokens) == (3 + 11, 1 + 11)
    assert_all_as_alone((holder, late))


def test_who_copies_what_another_spoilt_in_the_step_before_starts_over() -> None:
    """The prompt is shorter than a block: of what the holder has, the other one has only a copy."""
    harness = make_ahead(max_num_seqs=2)
    first = harness.add("first", [9, 9, 9], SamplingParams(max_tokens=3, ignore_eos=True))
    holder, late = harness.engine.add_group("group", [1, 2, 3], [Output(LONG), Output(LONG)])
    while first in harness.engine.lineup.unfinished.values():
        harness.step()
    assert not late.block_tables
    harness.runner.spoil(holder.block_tables[0].block_ids[0], holder)
    harness.run()
    assert holder.finish_reason is FinishReason.ERROR
    assert late.figures.preemptions == 1
    assert_as_alone(late)
    assert None not in harness.runner.slots
