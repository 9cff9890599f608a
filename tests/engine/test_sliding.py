"""Windows: blocks that slid out are given back, and a hit needs a window's blocks only."""

from pathlib import Path
from typing import Any

import pytest

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.forking import Output
from engine.request import Request, RequestError, SamplingParams
from tests.engine.fakes import FakeClock, assert_as_alone, make_config, make_harness, make_request
from tests.engine.tiny_configs import SERVED, WINDOW
from tests.engine.tiny_models import generate, load, make_engine, outputs_of, random_model, run


def make_manager(**changes: Any) -> KVCacheManager:
    return KVCacheManager(make_config(**changes), "fake", FakeClock())


def compute(manager: KVCacheManager, request: Request, chunk: int = 4) -> Request:
    """Admit a request and compute all its known tokens, a few at a time."""
    assert manager.admit(request)
    while request.num_computed_tokens < request.num_tokens:
        stop = min(request.num_computed_tokens + chunk, request.num_tokens)
        assert manager.grow(request, stop)
        manager.cache_blocks(request, stop)
        request.num_computed_tokens = stop
        manager.check_integrity([request])
    return request


def test_blocks_that_slid_out_are_given_back() -> None:
    manager = make_manager(windows=(6,), num_blocks=10)
    request = compute(manager, make_request(range(1, 31)))
    assert request.block_tables[0].num_slid == (28 - 6 + 1) // 4  # as the last two tokens were computed
    assert request.num_held_blocks == 8 - 5 == manager.pool.num_held
    assert request.figures.kv_blocks_peak == 3
    manager.release(request)
    assert manager.pool.num_held == 0
    manager.check_integrity([])


def test_a_hit_needs_the_windows_blocks_only() -> None:
    manager = make_manager(windows=(6,), num_blocks=12)
    manager.release(compute(manager, make_request(range(1, 31))))
    first = manager.pool.allocate(8)  # the least recently used, so the beginning is gone
    again = make_request(range(1, 31))
    assert manager.admit(again)
    assert again.num_computed_tokens == 28
    assert (again.num_held_blocks, again.block_tables[0].num_slid) == (2, 5)
    manager.release(again)
    other = make_request(range(1, 10))
    assert manager.admit(other)
    assert other.num_computed_tokens == 0
    manager.pool.release(first)


def test_a_gap_in_the_window_is_no_hit() -> None:
    manager = make_manager(windows=(6,), num_blocks=10)
    request = compute(manager, make_request(range(1, 31)))
    manager.pool.forget(request.held_block_ids[-2:-1])
    manager.release(request)
    again = make_request(range(1, 31))
    assert manager.admit(again)
    assert again.num_computed_tokens == 24
    manager.check_integrity([again])


def test_a_window_of_one_token_has_no_hit_without_a_block() -> None:
    manager = make_manager(windows=(1,))
    request = make_request(range(1, 12))
    assert manager.admit(request)
    assert request.num_computed_tokens == 0


def test_a_sequence_far_longer_than_the_cache() -> None:
    harness = make_harness(windows=(8,), num_blocks=8, max_model_len=500, max_num_seqs=2, token_budget=6)
    assert harness.config.most_blocks_of(500) == 6
    prompts = (range(1, 31), range(5, 9))
    requests = [
        harness.add(str(index), prompt, SamplingParams(max_tokens=150, ignore_eos=True))
        for index, prompt in enumerate(prompts)
    ]
    harness.run()
    for request in requests:
        assert_as_alone(request, windows=(8,))
        assert request.figures.kv_blocks_peak <= harness.config.most_blocks_of(500)
    harness.assert_idle()


def test_what_never_fits_is_refused() -> None:
    """A cache smaller than a window and a step holds sequences that fit in it whole."""
    harness = make_harness(windows=(8,), num_blocks=5, max_model_len=500, max_num_seqs=2, token_budget=6)
    assert harness.config.longest_sequence == 20
    with pytest.raises(RequestError, match="above the KV cache's 20"):
        harness.add("long", [1, 2, 3], SamplingParams(max_tokens=18))


def test_forks_share_what_has_not_slid_out() -> None:
    harness = make_harness(windows=(6,), num_blocks=24, max_model_len=500, token_budget=16)
    outputs = [Output(SamplingParams(max_tokens=30, ignore_eos=True, seed=seed)) for seed in range(3)]
    requests = harness.engine.add_group("group", list(range(1, 24)), outputs)
    harness.run()
    for request in requests:
        assert_as_alone(request, windows=(6,))
    assert (
        sum(request.figures.computed_tokens for request in requests) == 23 + 2 + 3 * 29
    )  # the last of the prompt by each
    harness.assert_idle()


def test_window_of_nothing() -> None:
    with pytest.raises(ValueError, match="windows has 0; each must be at least 1, or None"):
        EngineConfig(num_blocks=4, max_model_len=16, windows=(0,), max_num_seqs=1)


def test_a_model_holds_no_more_than_its_window_and_a_step(tmp_path: Path) -> None:
    config = SERVED["mistral-window"]()
    loaded = load(random_model(config), tmp_path)
    assert loaded.model.windows == (WINDOW,)
    prompt, num_tokens = list(range(3, 33)), 60
    engine = make_engine(loaded, num_blocks=12, token_budget=16, max_num_seqs=4)
    (request,) = run(engine, [prompt], num_tokens)
    assert outputs_of([request]) == [generate(random_model(config), prompt, num_tokens)]
    assert request.figures.kv_blocks_peak == (WINDOW + 16) // 4  # of the 23 that all its tokens would take
