"""Who is charged for a step's time and for a block's. That the ledger adds up in any life is the state machine's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_ledger import NS
from engine.ledger import PAIRS_PER_READ, PAIRS_PER_TOKEN, divide, weight
from engine.request import Request, SamplingParams
from engine.step_plan import ScheduledRequest
from tests.engine.fake_model import NAN_TOKEN
from tests.engine.fake_runner import FakeDeviceError
from tests.engine.fakes import Harness, make_harness, make_request
from tests.engine.ledger_oracle import LedgerOracle

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)


def make_timed_harness(**changes: int | bool) -> tuple[Harness, LedgerOracle]:
    """Return an engine whose steps take a second each."""
    harness = make_harness(**changes)
    oracle = LedgerOracle(harness)
    harness.runner.on_run = lambda: oracle.tick(1.0)
    return harness, oracle


def add(
    harness: Harness, oracle: LedgerOracle, request_id: str, *prompt: int, params: SamplingParams = LONG
) -> Request:
    request = harness.add(request_id, prompt, params)
    oracle.requests.append(request)
    return request


# --- a step's time ---


def test_weight_is_of_tokens_context_and_pairs() -> None:
    assert weight(0, 1) == PAIRS_PER_TOKEN + PAIRS_PER_READ + 1
    assert weight(100, 1) - weight(0, 1) == 100 * PAIRS_PER_READ + 100
    assert weight(10, 3) == 3 * PAIRS_PER_TOKEN + 13 * PAIRS_PER_READ + (11 + 12 + 13)


@given(
    whole=st.integers(0, 10**15),
    tokens=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**5)), min_size=1, max_size=40),
)
def test_parts_of_a_step_are_the_step(whole: int, tokens: list[tuple[int, int]]) -> None:
    request = make_request()
    shares = tuple(ScheduledRequest(request, computed, scheduled) for computed, scheduled in tokens)
    parts = divide(whole, shares)
    assert sum(parts) == whole
    total = sum(weight(computed, scheduled) for computed, scheduled in tokens)
    for part, (computed, scheduled) in zip(parts, tokens, strict=True):
        assert abs(part - whole * weight(computed, scheduled) / total) <= 1 + whole * 1e-12


def test_requests_pay_for_the_steps_they_are_in() -> None:
    harness, oracle = make_timed_harness()
    first = add(harness, oracle, "a", 1, 2, 3)
    harness.step()
    assert first.figures.engine_ns == NS
    second = add(harness, oracle, "b", 4, 5, 6)
    harness.step()
    assert first.figures.engine_ns + second.figures.engine_ns == 2 * NS
    assert 0 < first.figures.engine_ns - NS < second.figures.engine_ns  # one more token against three
    harness.run()
    oracle.check()
    assert first.figures.wasted_ns == second.figures.wasted_ns == 0


def test_time_between_steps_is_charged_too() -> None:
    harness, oracle = make_timed_harness()
    oracle.tick(2.0)
    harness.engine.ledger.charge_loading()
    oracle.tick(4.0)
    harness.engine.ledger.charge_idleness()
    request = add(harness, oracle, "a", 1, 2, 3, params=SHORT)
    oracle.tick(0.25)
    harness.run()
    account = harness.engine.ledger.account
    assert (account.loading_ns, account.idle_ns, account.overhead_ns) == (2 * NS, 4 * NS, 0)
    assert request.figures.engine_ns == account.request_ns == 2 * NS + NS // 4
    oracle.check()


# --- work that was lost ---


def test_recomputed_tokens_are_wasted_time() -> None:
    harness, oracle = make_timed_harness(num_blocks=5, enable_prefix_caching=False)
    first = add(harness, oracle, "a", *range(1, 8))
    second = add(harness, oracle, "b", *range(11, 18))
    harness.run()
    assert second.figures.preemptions > 0
    assert second.figures.recomputed_tokens >= 7
    assert 0 < second.figures.wasted_ns < second.figures.engine_ns
    assert first.figures.recomputed_tokens == first.figures.wasted_ns == 0
    oracle.check()


def test_prefix_hits_after_a_preemption_are_not_recomputed() -> None:
    harness, oracle = make_timed_harness()
    request = add(harness, oracle, "a", *range(1, 11))
    harness.step()
    harness.engine.lineup.set_apart([])
    harness.step()
    assert request.figures.recomputed_tokens == 2  # eight of its ten are in full blocks
    harness.run()
    oracle.check()


def test_steps_that_fail_are_wasted_and_paid_for() -> None:
    harness, oracle = make_timed_harness()
    first, second = add(harness, oracle, "a", 1, 2, 3), add(harness, oracle, "b", 4, 5, 6)
    harness.step()
    harness.runner.num_failures = 1
    harness.step()
    for request in (first, second):
        assert request.figures.wasted_ns == NS // 2
    harness.run()
    assert first.figures.recomputed_tokens >= 3
    oracle.check()


def test_a_culprit_has_paid_when_it_ends() -> None:
    harness, oracle = make_timed_harness()
    culprit = add(harness, oracle, "bad", 7, 7, 7)
    add(harness, oracle, "good", 1, 2, 3)
    harness.runner.fails_on = lambda plan: (
        FakeDeviceError() if any(share.request is culprit for share in plan.scheduled) else None
    )
    while culprit.error is None:
        harness.step()
    assert culprit.figures.engine_ns == culprit.figures.wasted_ns > NS
    harness.run()
    oracle.check()


def test_a_request_that_is_not_finite_pays_for_its_step() -> None:
    harness, oracle = make_timed_harness()
    bad, good = add(harness, oracle, "bad", 1, NAN_TOKEN), add(harness, oracle, "good", 1, 2)
    harness.run()
    assert bad.error is not None
    assert bad.figures.engine_ns > 0
    assert good.error is None
    oracle.check()


# --- blocks ---


def test_a_shared_block_is_paid_for_together() -> None:
    harness, oracle = make_timed_harness(token_budget=32)
    first = add(harness, oracle, "a", *range(1, 9), 20, params=SHORT)
    second = add(harness, oracle, "b", *range(1, 9), 21, params=SHORT)
    harness.run()
    assert oracle.held_ns == 2 * 4 * NS  # for two seconds: two shared blocks, and one each
    assert first.figures.kv_block_share_ns == second.figures.kv_block_share_ns == oracle.held_ns // 2
    assert first.figures.kv_block_seconds == 6.0  # unsplit
    oracle.tick(1.0)
    oracle.check()
    assert harness.engine.ledger.account.cached_block_ns == 2 * NS


def test_what_cannot_be_divided_is_not_lost() -> None:
    harness, oracle = make_timed_harness(token_budget=32)
    requests = [add(harness, oracle, str(number), *range(1, 9), 20 + number, params=SHORT) for number in range(3)]
    harness.run()
    shared_ns, own_ns = 2 * 2 * NS, 2 * NS  # two seconds of two blocks that are shared, and of one that is not
    shares = [request.figures.kv_block_share_ns for request in requests]
    assert sum(shares) == shared_ns + 3 * own_ns
    assert all(abs(share - own_ns - shared_ns / 3) < 10 for share in shares)
    oracle.check()


def test_a_block_is_a_holders_alone_once_the_other_has_gone() -> None:
    harness, oracle = make_timed_harness(token_budget=32)
    first = add(harness, oracle, "a", *range(1, 5), 20)
    second = add(harness, oracle, "b", *range(1, 5), 21)
    harness.step()  # a block that is shared and two that are not, for a second
    harness.engine.abort("a")
    harness.step()
    harness.engine.abort("b")
    assert first.figures.kv_block_share_ns == pytest.approx(1.5 * NS)
    assert second.figures.kv_block_share_ns == pytest.approx(1.5 * NS + 2 * NS)
    oracle.check()


def test_figures_of_a_running_request_can_be_brought_up_to_now() -> None:
    harness, oracle = make_timed_harness()
    request = add(harness, oracle, "a", 1, 2, 3)
    harness.step()
    harness.engine.settle()
    assert request.figures.kv_block_share_ns == NS
    harness.step()
    harness.engine.settle()
    assert request.figures.kv_block_share_ns == 2 * NS
    harness.run()
    oracle.check()
