"""Asynchronous scheduling when steps and requests fail: whoever counted on one that did is set right."""

import pytest

from engine.quarantine import DeviceOutOfMemory, EngineBroken
from engine.recovering import CALM_STEPS
from engine.request import FinishReason, SamplingParams
from engine.step_plan import SchedulerOutput
from tests.engine.ahead import LONG, aheads, assert_all_as_alone, first_output, make_ahead
from tests.engine.fake_runner import FakeDeviceError
from tests.engine.fakes import assert_as_alone


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


def test_who_starts_over_has_no_token_of_the_step_that_was_under_way() -> None:
    """Both read a block that goes bad: one of them is to blame, the other one starts over, in the middle of a step."""
    harness = make_ahead()
    bad = harness.add("bad", [1, 2, 3, 4, 5], LONG)
    innocent = harness.add("innocent", [1, 2, 3, 4, 6], LONG)
    harness.step()
    (shared, _), (also_shared, _) = bad.held_block_ids, innocent.held_block_ids
    assert shared == also_shared
    for request in (bad, innocent):
        harness.runner.spoil(shared, request)
    harness.run()
    assert bad.finish_reason is FinishReason.ERROR
    assert innocent.figures.preemptions == 1
    assert_as_alone(innocent)
