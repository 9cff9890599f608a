"""Requests that leave early or never get in: aborts, and those that can never fit. The others' outputs stay right."""

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.request import FinishReason, RequestError, RequestState, SamplingParams
from tests.engine.fakes import assert_as_alone, make_harness

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
SHORT = SamplingParams(max_tokens=2, ignore_eos=True)


# --- abort ---


def test_abort_of_a_waiting_request() -> None:
    harness = make_harness(max_num_seqs=1)
    running = harness.add("a", [1, 2], LONG)
    harness.add("b", [3, 4], LONG)
    last = harness.add("c", [5, 6], LONG)
    harness.step()
    aborted = harness.engine.abort("b")
    assert aborted is not None
    assert (aborted.state, aborted.finish_reason) == (RequestState.FINISHED, FinishReason.CANCELLED)
    assert aborted.figures.finished_at == harness.clock.now
    harness.engine.lineup.check_integrity()
    assert list(harness.run()) == ["a", "c"]
    assert_as_alone(running)
    assert_as_alone(last)


def test_abort_of_a_running_request_keeps_its_output_and_frees_its_blocks() -> None:
    harness = make_harness()
    aborted = harness.add("a", range(1, 10), LONG)
    other = harness.add("b", range(1, 10), LONG)
    for _ in range(3):
        harness.step()
    assert harness.engine.abort("a") is aborted
    harness.engine.lineup.check_integrity()
    assert aborted.num_output_tokens == 3
    assert aborted.block_tables == []
    harness.run()
    assert_as_alone(other)
    harness.assert_idle()


def test_abort_in_the_middle_of_a_prefill() -> None:
    harness = make_harness(token_budget=8)
    harness.add("a", range(1, 20), LONG)
    harness.step()
    harness.engine.abort("a")
    harness.engine.lineup.check_integrity()
    again = harness.add("a", range(1, 20), LONG)  # the id is free again
    harness.step()
    assert again.figures.prefix_hit_tokens == 8
    harness.run()
    assert_as_alone(again)


def test_abort_of_a_preempted_request() -> None:
    harness = make_harness(num_blocks=5)
    harness.add("a", range(1, 8), LONG)
    newest = harness.add("b", range(11, 18), LONG)
    while not newest.figures.preemptions:
        harness.step()
    assert harness.engine.abort("b") is newest
    harness.engine.lineup.check_integrity()
    assert list(harness.run()) == ["a"]


def test_abort_of_the_unknown_and_the_finished_is_none() -> None:
    harness = make_harness()
    harness.add("a", [1], SHORT)
    harness.run()
    assert harness.engine.abort("a") is None
    assert harness.engine.abort("never") is None


def test_same_id_while_an_aborted_one_is_still_in_the_queue() -> None:
    harness = make_harness(max_num_seqs=1)
    harness.add("first", [1], LONG)
    harness.add("a", [2], LONG)
    harness.step()
    harness.engine.abort("a")
    again = harness.add("a", [3], LONG)
    harness.engine.lineup.check_integrity()
    assert list(harness.run()) == ["first", "a"]
    assert_as_alone(again)


# --- requests that can never fit ---


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code", "message"),
    [
        ([], 1, "empty_prompt", "prompt has no tokens"),
        ([1] * 40, 25, "context_length", "40 tokens and max_tokens is 25: together 65, above the context length of 64"),
        ([1] * 20, 20, "kv_capacity", "20 tokens and max_tokens is 20: together 40, above the KV cache's 32"),
        ([1, 32], 1, "invalid_token", "prompt holds token id 32; ids go from 0 to 31"),
        ([-1], 1, "invalid_token", "prompt holds token id -1"),
    ],
)
def test_request_that_never_fits_harms_nobody(prompt: list[int], max_tokens: int, code: str, message: str) -> None:
    harness = make_harness(num_blocks=8, max_model_len=64)
    other = harness.add("other", [1, 2, 3], LONG)
    harness.step()
    with pytest.raises(RequestError, match=message) as raised:
        harness.add("bad", prompt, SamplingParams(max_tokens=max_tokens))
    assert raised.value.code == code
    assert "\n" not in str(raised.value)
    assert list(harness.engine.lineup.unfinished) == ["other"]
    harness.run()
    assert_as_alone(other)


def test_invalid_stop_token_and_duplicate_id() -> None:
    harness = make_harness()
    with pytest.raises(RequestError, match="stop_token_ids holds token id 99") as raised:
        harness.add("a", [1], SamplingParams(max_tokens=1, stop_token_ids=frozenset({99})))
    assert raised.value.code == "invalid_token"
    first = harness.add("a", [1], SHORT)
    with pytest.raises(RequestError, match="request_id 'a' is already in the engine") as raised:
        harness.add("a", [2], SHORT)
    assert raised.value.code == "duplicate_request"
    assert harness.run() == {"a": first}


def test_exactly_full_context_and_pool_are_accepted() -> None:
    harness = make_harness(num_blocks=4, max_model_len=16)
    request = harness.add("a", range(1, 11), SamplingParams(max_tokens=6, ignore_eos=True))
    harness.run()
    assert request.num_tokens == 16
    assert_as_alone(request)


# --- configuration ---


@pytest.mark.parametrize("field", ["num_blocks", "max_model_len", "block_size", "max_num_seqs", "token_budget"])
def test_configuration_refuses_zero(field: str) -> None:
    values: dict[str, Any] = {"num_blocks": 1, "max_model_len": 1} | {field: 0}
    with pytest.raises(ValueError, match=f"{field} is 0; it must be at least 1"):
        EngineConfig(**values)


def test_budget_must_let_all_requests_decode() -> None:
    with pytest.raises(ValueError, match=r"token_budget is 7; it must be at least max_num_seqs \(8\)"):
        EngineConfig(num_blocks=1, max_model_len=1, token_budget=7, max_num_seqs=8)
