"""The scheduler on a runner with a real KV: sharing, chunks, budget, preemption. Outputs are always those alone."""

import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import FrameType
from typing import NoReturn

import pytest

from engine.request import FinishReason, Request, RequestState, SamplingParams
from tests.engine.fakes import Harness, assert_as_alone, make_harness

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)


def planned(harness: Harness) -> list[tuple[str, int, int]]:
    """Return the last plan: id, computed tokens and scheduled tokens of each share."""
    return [
        (share.request.request_id, share.num_computed_tokens, share.num_scheduled_tokens)
        for share in harness.runner.plans[-1].scheduled
    ]


# --- prefix hits ---


def test_requests_of_one_step_share_their_prefix() -> None:
    harness = make_harness(token_budget=32)
    first = harness.add("a", [*range(1, 13), 20], LONG)
    second = harness.add("b", [*range(1, 13), 21], LONG)
    harness.step()
    assert planned(harness) == [("a", 0, 13), ("b", 12, 1)]
    assert second.held_block_ids[:3] == first.held_block_ids[:3]
    assert second.held_block_ids[3] != first.held_block_ids[3]
    assert second.figures.prefix_hit_tokens == 12
    for request in harness.run().values():
        assert_as_alone(request)
    harness.assert_idle()


def test_requests_share_with_those_before_them() -> None:
    harness = make_harness()
    harness.add("a", [*range(1, 13), 20], LONG)
    harness.run()
    later = harness.add("b", [*range(1, 13), 21, 22], LONG)
    harness.step()
    assert planned(harness) == [("b", 12, 2)]
    harness.run()
    assert_as_alone(later)


def test_follow_up_hits_the_output_too() -> None:
    harness = make_harness()
    first = harness.add("a", range(1, 6), LONG)
    harness.run()
    follow_up = harness.add("b", [*first.token_ids, 7, 7], LONG)
    harness.step()
    # The last token sampled was never computed: 16 of the 17 known tokens are in full blocks.
    assert follow_up.figures.prefix_hit_tokens == 16
    harness.run()
    assert_as_alone(follow_up)


def test_hit_is_capped_before_the_last_token() -> None:
    harness = make_harness()
    harness.add("a", range(1, 9), SHORT)
    harness.run()
    same = harness.add("b", range(1, 9), SHORT)
    harness.step()
    assert planned(harness) == [("b", 4, 4)]
    harness.run()
    assert_as_alone(same)


def test_tenants_do_not_share() -> None:
    harness = make_harness(token_budget=64)
    requests = [harness.add(name, range(1, 14), LONG, tenant=name) for name in ("a", "b", "")]
    harness.step()
    assert planned(harness) == [("a", 0, 13), ("b", 0, 13), ("", 0, 13)]
    assert not set(requests[0].held_block_ids) & set(requests[1].held_block_ids)
    harness.run()
    for request in requests:
        assert_as_alone(request)


# --- chunks and budget ---


def test_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    harness = make_harness(token_budget=8)
    decoding = harness.add("a", [1, 2], LONG)
    harness.step()
    chunked = harness.add("b", range(1, 20), LONG)
    for expected in ([("a", 2, 1), ("b", 0, 7)], [("a", 3, 1), ("b", 7, 7)], [("a", 4, 1), ("b", 14, 5)]):
        harness.step()
        assert planned(harness) == expected
    assert chunked.num_output_tokens == 1
    harness.run()
    assert_as_alone(decoding)
    assert_as_alone(chunked)


@pytest.mark.parametrize("token_budget", [1, 2, 3, 5, 64])
def test_budget_and_batch_size_are_respected(token_budget: int) -> None:
    harness = make_harness(token_budget=token_budget, max_num_seqs=min(3, token_budget))
    requests = [harness.add(str(index), range(1, 3 + index), LONG) for index in range(7)]
    harness.run()
    for plan in harness.runner.plans:
        assert plan.num_tokens == sum(share.num_scheduled_tokens for share in plan.scheduled) <= token_budget
        assert len(plan.scheduled) <= min(3, token_budget)
    for request in requests:
        assert_as_alone(request)


def test_first_come_first_served() -> None:
    harness = make_harness(max_num_seqs=2)
    for name in "abcd":
        harness.add(name, [1, 2, 3], SHORT)
    order = [request.request_id for _ in range(4) for request in harness.step()]
    assert order == ["a", "b", "c", "d"]


def test_request_that_does_not_fit_now_holds_back_later_ones() -> None:
    harness = make_harness(num_blocks=6, token_budget=32)
    harness.add("a", range(1, 13), LONG)
    harness.step()
    harness.add("large", range(1, 18), SHORT, tenant="b")
    harness.add("small", [1], SHORT)
    harness.step()
    assert harness.engine.status().num_waiting == 2
    finished = harness.run()
    assert list(finished) == ["a", "large", "small"]


# --- preemption ---


def test_preempted_requests_give_the_same_tokens() -> None:
    harness = make_harness(num_blocks=8, token_budget=64)
    requests = [harness.add(str(index), range(index + 1, index + 8), LONG) for index in range(4)]
    harness.run()
    for request in requests:
        assert_as_alone(request)
        assert request.finish_reason is FinishReason.LENGTH
    assert requests[0].figures.preemptions == 0  # the oldest goes on
    assert sum(request.figures.preemptions for request in requests) == harness.engine.status().preemptions > 0
    harness.assert_idle()


def test_newest_is_preempted_and_waits_first() -> None:
    harness = make_harness(num_blocks=5, max_num_seqs=2)
    oldest = harness.add("a", range(1, 8), LONG)
    newest = harness.add("b", range(11, 18), LONG)
    harness.add("c", [1], SHORT)
    while not newest.figures.preemptions:
        harness.step()
    assert [request.request_id for request in harness.runner.plans[-1].preempted] == ["b"]
    assert (oldest.state, newest.state) == (RequestState.RUNNING, RequestState.WAITING)
    assert newest.block_tables == []
    assert newest.num_output_tokens > 0
    harness.run()
    plan = next(plan for plan in harness.runner.plans if any(s.request.request_id == "c" for s in plan.scheduled))
    assert [share.request.request_id for share in plan.scheduled] == ["b", "c"]
    assert_as_alone(newest)


def test_recomputation_hits_what_is_left_of_the_requests_own_blocks() -> None:
    harness = make_harness(num_blocks=5)
    harness.add("a", [1, 2], SamplingParams(max_tokens=7, ignore_eos=True))
    newest = harness.add("b", range(11, 22), SamplingParams(max_tokens=8, ignore_eos=True))
    harness.run()
    assert newest.figures.preemptions == 1
    assert newest.figures.prefix_hit_tokens == 0  # of the first admission
    assert newest.figures.computed_tokens < 2 * newest.num_tokens - 8
    assert_as_alone(newest)


def test_request_as_large_as_the_pool_runs_alone() -> None:
    harness = make_harness(num_blocks=4, max_model_len=16)
    small = harness.add("small", [1, 2], SHORT)
    large = harness.add("large", range(1, 5), LONG)
    harness.run()
    assert large.num_tokens == 16
    assert_as_alone(small)
    assert_as_alone(large)


# --- cost ---


def count_calls(action: Callable[[], object]) -> int:
    """Return the number of Python and C functions that an action calls."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def calls_of_a_step(num_waiting: int) -> tuple[int, int]:
    """Return the calls of one step, and of aborting one request, with so many waiting."""
    harness = make_harness(max_num_seqs=4)
    for index in range(num_waiting):
        harness.add(str(index), [1, 2, 3], LONG)
    harness.engine.step()
    step = count_calls(harness.engine.step)
    return step, count_calls(lambda: harness.engine.abort(str(num_waiting - 1)))


def test_a_step_costs_the_same_however_many_wait() -> None:
    """Counted in a process of its own: a thread that another test left with an exception to raise would let Python 3.11
    go round for ever at the first call that is traced."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        many, few = pool.map(calls_of_a_step, (100_000, 10))
    assert many == few


class NeverWalked(deque[Request]):
    """A queue used at its ends only: walking through it is one C call, which a count of calls would not show."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("the waiting queue is walked through")

    def __contains__(self, _request: object) -> NoReturn:
        raise AssertionError("the waiting queue is searched")

    def remove(self, _request: object) -> NoReturn:
        raise AssertionError("the waiting queue is searched")


def test_nothing_walks_through_the_waiting() -> None:
    harness = make_harness(num_blocks=5, max_num_seqs=3)
    harness.engine.lineup._waiting = NeverWalked()
    for index in range(9):
        harness.add(str(index), range(index, index + 7), LONG)
    harness.engine.abort("5")
    finished: list[str] = []
    while harness.engine.has_work:
        finished += [request.request_id for request in harness.engine.step()]
    assert finished == ["0", "1", "2", "3", "4", "6", "7", "8"]
    assert harness.engine.status().preemptions > 0
