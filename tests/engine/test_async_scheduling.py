"""Asynchronous scheduling: a step is planned and launched while the one before is under way, and nobody can tell."""

from engine.request import FinishReason, SamplingParams
from tests.engine.ahead import LONG, aheads, assert_all_as_alone, first_output, make_ahead
from tests.engine.fake_speculation import RandomDrafts
from tests.engine.fakes import Harness, assert_as_alone, make_config
from tests.engine.ledger_oracle import LedgerOracle


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
