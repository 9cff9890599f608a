"""Drafted tokens in the scheduler and the ledger: what counts, who pays, what is cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from engine.request import FinishReason, Request, SamplingParams
from engine.step_plan import NO_DRAFTS, Drafts, SchedulerOutput
from tests.engine.fake_model import NAN_TOKEN, generate_alone
from tests.engine.fakes import Harness, assert_as_alone, make_config

PROMPT = [1, 2, 3]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@dataclass
class ScriptedDrafts:
    """Proposes what it is told to, once."""

    script: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    proposed_to: list[str] = field(default_factory=list)

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        self.proposed_to = [request.request_id for request in decoding]
        script, self.script = self.script, NO_DRAFTS
        return script

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        pass


def make(**changes: int | bool) -> tuple[Harness, ScriptedDrafts]:
    drafts = ScriptedDrafts()
    return Harness(make_config(**changes), drafts), drafts


def right_draft(prompt: Sequence[int], params: SamplingParams, start: int, count: int) -> tuple[int, ...]:
    return tuple(generate_alone(prompt, params)[0][start : start + count])


def test_right_draft_becomes_output_in_one_step() -> None:
    harness, drafts = make()
    request = harness.add("r", PROMPT, PARAMS)
    harness.step()
    drafts.script = {"r": right_draft(PROMPT, PARAMS, 1, 4)}
    harness.step()
    assert request.num_output_tokens == 1 + 4 + 1
    assert (request.figures.drafted_tokens, request.figures.accepted_tokens) == (4, 4)
    assert len(request.figures.token_times) == request.num_output_tokens
    assert harness.engine.status().output_tokens == 6
    harness.run()
    assert_as_alone(request)


def test_wrong_draft_is_cut_where_it_goes_wrong_and_its_time_is_wasted() -> None:
    harness, drafts = make()
    harness.runner.on_run = lambda: setattr(harness.clock, "now", harness.clock.now + 1.0)
    request = harness.add("r", PROMPT, PARAMS)
    harness.step()
    wasted = request.figures.wasted_ns
    first, second, third = right_draft(PROMPT, PARAMS, 1, 3)
    drafts.script = {"r": (first, second, (third + 1) % NAN_TOKEN, third)}
    harness.step()
    assert request.num_output_tokens == 4
    assert (request.figures.drafted_tokens, request.figures.accepted_tokens) == (4, 2)
    assert request.figures.computed_tokens == len(PROMPT) + 5
    assert request.figures.wasted_ns - wasted == 1_000_000_000 * 2 // 5
    assert harness.engine.ledger.account.rejected_tokens == 2
    assert request.figures.recomputed_tokens == 0
    harness.run()
    assert_as_alone(request)
    assert request.figures.recomputed_tokens == 0


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_draft_never_goes_beyond_max_tokens(length: int) -> None:
    harness, drafts = make()
    params = SamplingParams(max_tokens=length, ignore_eos=True)
    request = harness.add("r", PROMPT, params)
    harness.step()
    drafts.script = {"r": right_draft(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), 1, 9)}
    harness.step()
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_output_tokens == length
    assert request.figures.kv_blocks_peak * harness.config.block_size < len(PROMPT) + length + harness.config.block_size
    harness.assert_idle()


def test_stop_inside_an_accepted_run_ends_the_output_there() -> None:
    whole = right_draft(PROMPT, PARAMS, 0, 12)
    harness, drafts = make()
    params = SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=frozenset({whole[3]}), logprobs=0)
    request = harness.add("r", PROMPT, params)
    harness.step()
    drafts.script = {"r": whole[1:8]}
    harness.step()
    assert request.finish_reason is FinishReason.STOP
    assert request.output_token_ids == list(whole[: whole.index(whole[3]) + 1])
    assert request.figures.drafted_tokens - request.figures.accepted_tokens == 7 - (request.num_output_tokens - 2)
    harness.assert_idle()


def test_min_tokens_hold_inside_an_accepted_run() -> None:
    whole = right_draft(PROMPT, PARAMS, 0, 12)
    harness, drafts = make()
    params = SamplingParams(max_tokens=12, min_tokens=6, ignore_eos=True, stop_token_ids=frozenset(whole[1:8]))
    request = harness.add("r", PROMPT, params)
    harness.step()
    drafts.script = {"r": whole[1:8]}
    harness.run()
    assert_as_alone(request)
    assert request.num_output_tokens >= 6


def test_nobody_is_preempted_or_kept_out_for_a_draft() -> None:
    harness, drafts = make(num_blocks=3, block_size=4, token_budget=32)
    request = harness.add("r", PROMPT, SamplingParams(max_tokens=5, ignore_eos=True))
    other = harness.add("other", [*PROMPT, 4], SamplingParams(max_tokens=4, ignore_eos=True))
    harness.step()
    assert harness.engine.scheduler.cache.pool.num_free == 1
    late = harness.add("late", [7], SamplingParams(max_tokens=1, ignore_eos=True))
    drafts.script = {"r": right_draft(PROMPT, request.params, 1, 3)}
    harness.step()
    assert late.finish_reason is not None or other.figures.preemptions == 0
    assert harness.engine.status().preemptions == 0
    assert request.figures.drafted_tokens == 0  # the last block went to those who need it
    finished = harness.run()
    for ended in finished.values():
        assert_as_alone(ended)


def test_draft_that_the_model_fails_on_costs_a_new_start_only() -> None:
    harness, drafts = make()
    request = harness.add("r", PROMPT, PARAMS)
    other = harness.add("other", PROMPT[:2], PARAMS)
    harness.step()
    drafts.script = {"r": (NAN_TOKEN, 1)}
    assert harness.step() == []
    assert not request.may_draft
    assert request.figures.preemptions == 1
    assert other.figures.preemptions == 0
    harness.run()
    assert_as_alone(request)
    assert_as_alone(other)


def test_step_that_raises_over_a_draft_is_run_again_without() -> None:
    harness, drafts = make()
    request, other = harness.add("r", PROMPT, PARAMS), harness.add("other", PROMPT[:2], PARAMS)
    harness.step()
    drafts.script = {"r": right_draft(PROMPT, PARAMS, 1, 3)}
    harness.runner.num_failures = 1
    harness.step()
    assert (request.may_draft, other.may_draft) == (False, True)
    harness.run()
    assert_as_alone(request)
    assert_as_alone(other)


def test_nothing_is_drafted_beside_a_prefill() -> None:
    harness, drafts = make(token_budget=8)
    harness.add("r", PROMPT, PARAMS)
    harness.step()
    assert drafts.proposed_to == []  # nobody ran yet
    harness.step()
    assert drafts.proposed_to == ["r"]
    harness.add("long", range(1, 20), PARAMS)
    harness.step()
    drafts.proposed_to = []
    harness.step()
    assert drafts.proposed_to == []


def test_accepted_tokens_are_offered_to_the_prefix_cache_and_rejected_ones_are_not() -> None:
    harness, drafts = make(block_size=4)
    harness.add("r", PROMPT, SamplingParams(max_tokens=7, ignore_eos=True))
    harness.step()
    whole = right_draft(PROMPT, PARAMS, 0, 7)
    drafts.script = {"r": (*whole[1:5], (whole[5] + 1) % NAN_TOKEN)}
    harness.step()
    known = [*PROMPT, *whole]
    assert harness.engine.scheduler.cache.pool.num_cached == (len(PROMPT) + 1 + 4) // 4
    harness.run()
    again = harness.add("again", known[:9], PARAMS)
    harness.run()
    assert again.figures.prefix_hit_tokens == 8
    assert_as_alone(again)
