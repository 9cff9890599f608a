"""Asynchronous scheduling: a step is planned and launched while the one before is under way, and nobody can tell."""

from collections.abc import Iterable

import pytest

from engine.forking import Output
from engine.quarantine import DeviceOutOfMemory, EngineBroken
from engine.recovering import CALM_STEPS
from engine.request import FinishReason, Request, SamplingParams
from engine.step_plan import SchedulerOutput
from tests.engine.fakes import (
    FakeDeviceError,
    Harness,
    RandomDrafts,
    assert_as_alone,
    continuation,
    make_config,
)
from tests.engine.ledger_oracle import LedgerOracle

LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def make_ahead(**changes: object) -> Harness:
    return Harness(make_config(async_scheduling=True, **changes))


def aheads(harness: Harness) -> list[bool]:
    return [plan.is_ahead for plan in harness.runner.plans]


def first_output(prompt: list[int], number: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(continuation(tokens))
    return tokens[len(prompt) :]


def assert_all_as_alone(requests: Iterable[Request]) -> None:
    for request in requests:
        assert_as_alone(request)


def test_steps_are_launched_before_the_ones_before_them_are_finished() -> None:
    harness = make_ahead()
    requests = [harness.add(str(index), [1, 2, 3, index], LONG) for index in range(4)]
    assert harness.step() == []
    assert len(harness.runner.plans) == 2
    assert [request.num_output_tokens for request in requests] == [1] * 4
    harness.run()
    assert aheads(harness) == [False, *[True] * 11]  # and none for tokens behind the last
    assert_all_as_alone(requests)
    harness.assert_idle()


def test_a_prefill_in_chunks_and_late_comers_run_ahead_too() -> None:
    harness = make_ahead(token_budget=8)
    first = harness.add("first", range(1, 22), LONG)
    harness.step()
    late = harness.add("late", range(5, 16), LONG)
    harness.run()
    assert aheads(harness).count(False) == 1
    assert_all_as_alone((first, late))


def test_a_token_computed_behind_the_end_is_nobodys() -> None:
    harness = make_ahead()
    oracle = LedgerOracle(harness)
    harness.runner.on_run = lambda: oracle.tick(1.0)
    stop = first_output([1, 2, 3], 3)[-1]
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop})))
    going_on = harness.add("going on", [7, 8, 9], LONG)
    oracle.requests += [ending, going_on]
    finished = harness.run()
    assert set(finished) == {"ending", "going on"}
    assert_all_as_alone((ending, going_on))
    assert ending.figures.computed_tokens == 3 + ending.num_output_tokens - 1
    assert sum(len(plan.scheduled) for plan in harness.runner.plans) > ending.num_output_tokens + 12
    oracle.check()


def test_what_is_computed_for_nobody_alone_is_overhead() -> None:
    harness = make_ahead()
    oracle = LedgerOracle(harness)
    harness.runner.on_run = lambda: oracle.tick(1.0)
    stop = first_output([1, 2, 3], 2)[-1]
    request = harness.add("alone", [1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop})))
    oracle.requests.append(request)
    while harness.engine.lineup.unfinished:
        harness.step()
    # The step behind the end is under way.
    assert (harness.engine.has_work, harness.step(), harness.engine.has_work) == (True, [], False)
    assert harness.engine.last_step is None
    oracle.check()
    harness.assert_idle()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=6, presence_penalty=0.5),
        SamplingParams(max_tokens=6, frequency_penalty=0.5),
        SamplingParams(max_tokens=6, repetition_penalty=1.5),
        SamplingParams(max_tokens=6, prompt_logprobs=1),
    ],
    ids=str,
)
def test_whoever_needs_the_newest_token_is_waited_for(params: SamplingParams) -> None:
    harness = make_ahead(token_budget=8)
    other = harness.add("other", [4, 5, 6], LONG)
    harness.step()
    asking = harness.add("asking", range(1, 20), params)
    while "asking" in harness.engine.lineup.unfinished:
        harness.step()
        running = {share.request.request_id for share in harness.runner.plans[-2].scheduled}
        if "asking" in running and asking.needs_known_tokens:
            assert not harness.runner.plans[-1].is_ahead
    harness.run()
    assert_as_alone(other)


def test_outputs_of_one_prompt_are_waited_for() -> None:
    harness = make_ahead()
    requests = harness.engine.add_group("group", [1, 2, 3, 4, 5], [Output(LONG), Output(LONG)])
    harness.run()
    assert not any(aheads(harness))
    assert_all_as_alone(requests)


def test_drafts_are_waited_for() -> None:
    harness = Harness(make_config(async_scheduling=True), RandomDrafts(1))
    request = harness.add("drafting", [1, 2, 3], LONG)
    harness.run()
    assert not any(aheads(harness))
    assert_as_alone(request)


def test_nobody_is_preempted_ahead() -> None:
    harness = make_ahead(num_blocks=6)
    requests = [harness.add(str(index), [index, 2, 3, 4, 5, 6], LONG) for index in range(2)]
    harness.run()
    assert any(plan.preempted for plan in harness.runner.plans)
    assert not any(plan.preempted for plan in harness.runner.plans if plan.is_ahead)
    assert_all_as_alone(requests)


def test_the_block_that_a_last_step_fills_is_cached() -> None:
    harness = make_ahead()
    request = harness.add("first", [1, 2, 3], SamplingParams(max_tokens=6, ignore_eos=True))
    harness.run()
    again = harness.add("again", [*request.token_ids, 4], LONG)
    harness.step()
    assert again.figures.prefix_hit_tokens == 8  # the prompt's three and five outputs: the last was not computed


def test_who_reads_what_another_spoilt_in_the_step_before_starts_over() -> None:
    """The block in which a decode of `bad` goes wrong is full then, and already a prefix hit of `innocent`."""
    harness = make_ahead()
    prompt = [1, 2, 3]
    bad = harness.add("bad", prompt, LONG)
    harness.step()
    assert len(harness.runner.plans) == 2  # the decode of token 3, which fills the block, is under way
    block = bad.block_tables[0].block_ids[0]
    harness.runner.spoil(block, bad)
    innocent = harness.add("innocent", [*prompt, *first_output(prompt, 1), 9, 9], LONG)
    harness.run()
    assert bad.finish_reason is FinishReason.ERROR
    assert (innocent.figures.prefix_hit_tokens, innocent.figures.preemptions) == (4, 1)
    assert_as_alone(innocent)


def test_a_step_that_cannot_be_launched_ahead_lets_the_one_before_finish() -> None:
    harness = make_ahead()
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    other = harness.add("other", [4, 5, 6], LONG)
    harness.step()
    harness.runner.num_failures = 1
    assert harness.step() == [ending]
    assert harness.engine.status().num_running == 0
    harness.run()
    assert_all_as_alone((ending, other))


def test_a_step_that_fails_late_takes_the_one_after_it_along() -> None:
    harness = make_ahead()
    requests = [harness.add(str(index), [1, 2, index], LONG) for index in range(3)]
    harness.step()
    harness.runner.num_late_failures = 1
    harness.step()
    harness.step()
    assert harness.engine.status().blocks_cached == 0
    harness.run()
    assert_all_as_alone(requests)


def test_what_a_failed_step_wrote_for_whom_the_one_before_ended_is_scrubbed() -> None:
    harness = make_ahead()
    stop = first_output([1, 2, 3], 2)[-1]
    params = SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop}))
    ending = harness.add("ending", [1, 2, 3], params)
    other = harness.add("other", [4, 5, 6], LONG)
    harness.step()
    blocks = ending.held_block_ids
    harness.runner.num_late_failures = 1
    assert harness.step() == [ending]  # the step that was launched, and has a share of its, is the one to fail
    harness.step()
    assert set(blocks) <= set(harness.runner.scrubbed)
    harness.run()
    assert_as_alone(other)


def test_the_culprit_is_found_when_its_steps_fail_late() -> None:
    harness = make_ahead()
    requests = [harness.add(str(index), [index, 2, 3], LONG) for index in range(5)]

    def fails(plan: SchedulerOutput) -> Exception | None:
        return (
            FakeDeviceError() if any(r.request_id == "3" and r.num_output_tokens > 2 for r in plan.requests) else None
        )

    harness.runner.fails_on = fails
    harness.run()
    (failed,) = (request for request in requests if request.error is not None)
    assert failed.request_id == "3"
    assert_all_as_alone(request for request in requests if request is not failed)


def test_a_step_ahead_that_is_too_large_is_made_smaller() -> None:
    harness = make_ahead()
    requests = [harness.add(str(index), [index, 2, 3], LONG) for index in range(4)]
    harness.step()
    harness.runner.fails_on = lambda plan: DeviceOutOfMemory("4 are too many") if len(plan.scheduled) > 2 else None
    harness.run()
    assert all(len(plan.scheduled) <= 2 for plan in harness.runner.plans[4:])
    assert_all_as_alone(requests)


def test_a_step_that_has_no_memory_beside_another_is_taken_in_turn() -> None:
    """Nobody is to blame for it, even where the step ahead has one request left that did not end meanwhile."""
    harness = make_ahead()
    harness.add("ending", [4, 5, 6], SamplingParams(max_tokens=3, ignore_eos=True))
    other = harness.add("other", [1, 2, 3], LONG)
    harness.runner.fails_on = lambda plan: DeviceOutOfMemory("one is enough") if plan.is_ahead else None
    finished = harness.run()
    assert_all_as_alone(finished.values())
    assert set(finished) == {"ending", "other"}
    assert len([plan for plan in harness.runner.plans if plan.is_ahead]) == 1
    assert other.figures.preemptions == 1


def test_steps_are_planned_ahead_again_after_some_that_were_not() -> None:
    harness = make_ahead(max_model_len=200, num_blocks=64)
    harness.runner.fails_on = lambda plan: DeviceOutOfMemory("once") if len(harness.runner.plans) == 2 else None
    request = harness.add("long", [1, 2, 3], SamplingParams(max_tokens=150, ignore_eos=True))
    harness.run()
    assert aheads(harness)[:3] == [False, True, False]
    assert aheads(harness)[CALM_STEPS : CALM_STEPS + 4] == [False, False, False, True]
    assert_as_alone(request)


def test_who_ended_is_told_before_the_model_is_found_broken() -> None:
    harness = make_ahead()
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    harness.add("other", [4, 5, 6], LONG)
    harness.step()
    harness.runner.num_failures = 1
    harness.runner.probe_fails = True
    assert harness.step() == [ending]
    with pytest.raises(EngineBroken):
        harness.step()


def test_what_goes_wrong_in_vain_spoils_nobody() -> None:
    """A decode behind the end of `ending` writes what is not finite to a block that is another's in the next step."""
    harness = make_ahead(num_blocks=6)
    stop = first_output([1, 2, 3], 2)[-1]
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop})))
    other = harness.add("other", [4, 5, 6, 7, 8, 9, 10], LONG)
    harness.step()
    held: list[list[int]] = []
    harness.runner.on_run = lambda: held.append(ending.held_block_ids)
    assert harness.step() == [ending]
    (_, spoilt) = held[-1]
    harness.runner.spoil(spoilt, ending)
    late = harness.add("late", range(10, 16), SamplingParams(max_tokens=4, ignore_eos=True))
    harness.step()
    assert late.figures.preemptions == 1  # it had that block
    harness.run()
    assert_all_as_alone((ending, other, late))
    assert None not in harness.runner.slots


def test_an_abort_of_somebody_who_is_not_here_waits_for_nothing() -> None:
    harness = make_ahead()
    request = harness.add("one", [1, 2, 3], LONG)
    harness.step()
    assert harness.engine.abort("another") is None
    assert (request.num_output_tokens, request.num_pending_tokens) == (1, 1)


def test_an_abort_first_finishes_the_step_under_way() -> None:
    harness = make_ahead()
    stop = first_output([1, 2, 3], 2)[-1]
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop})))
    aborted = harness.add("aborted", [4, 5, 6], LONG)
    harness.step()
    assert harness.engine.abort("aborted") is aborted
    assert aborted.num_output_tokens == 2
    assert ending.finish_reason is FinishReason.STOP
    assert harness.engine.has_work
    assert harness.step() == [ending]
    assert harness.engine.abort("ending") is None
    harness.run()
    harness.assert_idle()


def test_an_abort_of_what_just_ended_leaves_it_as_it_ended() -> None:
    harness = make_ahead()
    stop = first_output([1, 2, 3], 2)[-1]
    ending = harness.add("ending", [1, 2, 3], SamplingParams(max_tokens=9, stop_token_ids=frozenset({stop})))
    harness.step()
    assert harness.engine.abort("ending") is None
    assert ending.finish_reason is FinishReason.STOP
    assert harness.step() == [ending]


def test_a_model_found_broken_by_an_abort_is_the_next_steps_to_say() -> None:
    harness = make_ahead()
    harness.add("one", [1, 2, 3], LONG)
    other = harness.add("other", [1, 2, 4], LONG)
    harness.step()
    harness.runner.num_late_failures = 1
    harness.step()
    harness.runner.probe_fails = True
    assert harness.engine.abort("other") is other
    with pytest.raises(EngineBroken):
        harness.step()


def test_who_ends_while_it_is_settled_can_be_asked_for() -> None:
    harness = make_ahead()
    request = harness.add("one", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    harness.step()
    harness.engine.settle()
    assert harness.engine.take_ended() == [request]
    assert not harness.engine.has_work


def test_settling_finishes_the_step_under_way() -> None:
    harness = make_ahead()
    request = harness.add("one", [1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    harness.step()
    harness.engine.settle()
    assert request.finish_reason is FinishReason.LENGTH
    assert harness.step() == [request]
