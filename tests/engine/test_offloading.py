"""KV blocks in the host's memory: bookkeeping, the decision by measured times, and engines that compute less for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_copier import BlockCopier
from engine.host_tier import HostTier, Restore, Spill
from engine.kv_cache import KVCache, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from engine.model_loader import LoadedModel
from engine.offload_policy import STALE_SECONDS, CopyTime, Direction, OffloadPolicy, Rate
from engine.request import SamplingParams
from tests.engine.fakes import FakeClock, Harness, assert_as_alone, make_harness
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import load, make_engine, outputs_of, random_model, run

CPU = torch.device("cpu")
LONG = SamplingParams(max_tokens=12, ignore_eos=True)

# --- bookkeeping ---

keys = st.integers(0, 9)
actions = st.sampled_from(("put", "use", "forget"))
steps = st.lists(st.tuples(actions, keys, st.frozensets(keys, max_size=3)), max_size=60)


@settings(deadline=None)
@given(num_slots=st.integers(0, 5), steps=steps)
def test_the_tier_is_what_a_list_says(num_slots: int, steps: Sequence[tuple[str, int, frozenset[int]]]) -> None:
    tier = HostTier(num_slots)
    oldest_first: list[int] = []
    slots: dict[int, int] = {}
    for action, key, spared in steps:
        name = bytes([key])
        if action == "put":
            slot = tier.put(name, {bytes([one]) for one in spared})
            victims = [one for one in oldest_first if one not in spared]
            if key in oldest_first:
                assert slot is None
                oldest_first.remove(key)
                oldest_first.append(key)
            elif len(oldest_first) < num_slots or victims:
                assert slot is not None
                if len(oldest_first) == num_slots:
                    oldest_first.remove(victims[0])
                    assert slots.pop(victims[0]) == slot
                oldest_first.append(key)
                slots[key] = slot
            else:
                assert slot is None
        elif action == "forget":
            tier.forget((name,))
            oldest_first = [one for one in oldest_first if one != key]
            slots.pop(key, None)
        elif key in oldest_first:
            assert tier.use(name) == slots[key]
            oldest_first.remove(key)
            oldest_first.append(key)
        tier.check_integrity()
        assert tier.num_used == len(oldest_first)
        assert [tier.find(bytes([one])) for one in range(10)] == [slots.get(one) for one in range(10)]


# --- the decision ---


def measured(
    token: float | None, out: float | None, back: float | None, clock: FakeClock | None = None
) -> OffloadPolicy:
    """Return a policy of blocks of 4 tokens with these seconds a token and a block."""
    policy = OffloadPolicy(4, clock or FakeClock())
    if token is not None:
        policy.note_step(100, 1, 100 * token)
    for direction, seconds in ((Direction.OUT, out), (Direction.BACK, back)):
        if seconds is not None:
            policy.note_copies(CopyTime(direction, 10, 10 * seconds))
    return policy


@pytest.mark.parametrize(
    ("token", "out", "back", "spills", "restores"),
    [
        (None, None, None, True, True),
        (1.0, None, None, True, True),
        (None, 9.0, 9.0, True, True),
        (1.0, 2.0, 2.0, True, True),  # out and back take as long as four tokens
        (1.0, 2.1, 2.0, False, True),
        (1.0, 1.9, None, True, True),  # the way back is taken to be as long
        (1.0, 2.1, None, False, True),
        (1.0, 0.1, 4.1, False, False),
    ],
)
def test_copies_are_worth_it_where_computing_takes_longer(
    token: float | None, out: float | None, back: float | None, spills: bool, restores: bool
) -> None:
    policy = measured(token, out, back)
    assert (policy.spills(), policy.restores()) == (spills, restores)


def test_what_was_too_slow_is_tried_again_after_a_while() -> None:
    clock = FakeClock()
    policy = measured(1.0, 5.0, 5.0, clock)
    clock.now += STALE_SECONDS
    policy.note_step(100, 1, 100.0)
    assert not policy.spills()
    clock.now += 0.1
    assert policy.spills()
    assert policy.restores()


def test_new_measurements_count_more() -> None:
    rate = Rate(FakeClock())
    for seconds in [1000.0] + [1.0] * 60:
        rate.note(1, seconds)
    assert rate.seconds_per_unit == pytest.approx(1.0, rel=0.25)


def test_steps_of_decodes_do_not_tell_what_a_prefill_takes() -> None:
    policy = measured(None, 5.0, 5.0)
    policy.note_step(8, 8, 0.001)
    assert policy.spills()


# --- copies ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_what_comes_back_is_what_went(dtype: torch.dtype) -> None:
    layers = tuple(AttentionLayer(3, 3, 8, None, index) for index in range(2))
    cache = KVCache(KVShape(layers, groups_of(layers, 128), block_size=4, dtype=dtype), 5, CPU)
    contents = cache.block_bytes()
    for content in contents:
        content.copy_(torch.randint(0, 255, content.shape, generator=torch.Generator().manual_seed(0)))
    before = [content.clone() for content in contents]
    copier = BlockCopier(cache, 3, clock=FakeClock())
    copier.spill([Spill(4, 0), Spill(1, 2), Spill(2, 0)])
    cache.scrub([1, 2])
    copier.restore([Restore(2, 3), Restore(0, 1)])
    for now, old in zip(contents, before, strict=True):
        assert torch.equal(now[[0, 1, 3, 4]], old[[0, 2, 1, 4]])
        assert not now[2].any()
    assert copier.take_times() == [CopyTime(Direction.OUT, 2, 0.0), CopyTime(Direction.BACK, 2, 0.0)]
    assert copier.take_times() == []


# --- engines ---


def churn(harness: Harness) -> int:
    """Run a prompt, others that push its blocks out, and it again. Returns the tokens that were hit at last."""
    prompt = range(1, 14)
    harness.add("first", prompt, LONG)
    harness.run()
    harness.add("other", range(14, 30), LONG)
    harness.run()
    again = harness.add("again", prompt, LONG)
    harness.run()
    assert_as_alone(again)
    harness.assert_idle()
    return again.figures.prefix_hit_tokens


def test_evicted_blocks_come_back() -> None:
    assert churn(make_harness(num_blocks=7)) == 0
    harness = make_harness(num_blocks=7, num_host_blocks=20)
    assert churn(harness) == 12
    figures = harness.engine.status().offload
    assert (figures.num_slots, figures.blocks_back) == (20, 3)
    assert figures.num_used == figures.blocks_out >= 3


@pytest.mark.parametrize(("num_host_blocks", "num_hit"), [(1, 4), (2, 8), (3, 12)])
def test_a_small_tier_keeps_the_beginning(num_host_blocks: int, num_hit: int) -> None:
    """A sequence's tail is evicted first, on the device and then from the host."""
    assert churn(make_harness(num_blocks=7, num_host_blocks=num_host_blocks)) == num_hit


def test_slow_copies_are_not_made() -> None:
    harness = make_harness(num_blocks=7, num_host_blocks=20)

    def a_step_takes_a_millisecond() -> None:
        harness.clock.now += 0.001

    harness.runner.on_run = a_step_takes_a_millisecond
    harness.runner.copy_times = [CopyTime(Direction.OUT, 1, 1.0), CopyTime(Direction.BACK, 1, 1.0)]
    assert churn(harness) == 0
    assert harness.engine.status().offload.blocks_out == 0


def test_preempted_requests_compute_less() -> None:
    computed = []
    for num_host_blocks in (0, 30):
        harness = make_harness(num_blocks=9, num_host_blocks=num_host_blocks)
        requests = [harness.add(str(index), range(index, index + 14), LONG) for index in range(4)]
        harness.run()
        for request in requests:
            assert_as_alone(request)
        assert sum(request.figures.preemptions for request in requests) > 0
        computed.append(sum(request.figures.computed_tokens for request in requests))
        assert harness.engine.ledger.account.computed_tokens == computed[-1]
    assert computed[1] < computed[0]


def test_tenants_do_not_get_each_others_blocks() -> None:
    harness = make_harness(num_blocks=7, num_host_blocks=20)
    for tenant, prompt in (("a", range(1, 14)), ("a", range(14, 30)), ("b", range(1, 14))):
        last = harness.add(tenant + str(prompt[0]), prompt, LONG, tenant)
        harness.run()
    assert last.figures.prefix_hit_tokens == 0


def test_after_a_failed_step_nothing_comes_back() -> None:
    harness = make_harness(num_blocks=7, num_host_blocks=20)
    for name, prompt in (("first", range(1, 14)), ("other", range(14, 30))):
        harness.add(name, prompt, LONG)
        harness.run()
    assert harness.engine.status().offload.num_used > 0
    harness.runner.num_failures = 1
    harness.add("again", range(1, 14), LONG)
    harness.step()
    assert harness.engine.status().offload.num_used == 0
    assert_as_alone(harness.run()["again"])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("llama")
    return load(random_model(SERVED["llama"]()), folder)


@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=str)
def test_a_models_tokens_are_the_same_and_fewer_are_computed(loaded: LoadedModel, kv_dtype: torch.dtype | None) -> None:
    """Recomputing a tiny model may be quicker than copying; the times measured are left out here."""
    prompts = [[(index * 31 + position * 7) % 90 + 3 for position in range(30)] for index in range(6)]
    sizes: dict[str, Any] = {"num_blocks": 24, "token_budget": 64, "max_num_seqs": 6}
    plain = make_engine(loaded, kv_dtype, **sizes)
    engine = make_engine(loaded, kv_dtype, **sizes, num_host_blocks=200)
    engine.scheduler.cache.offload.policy.note_copies = lambda time: None  # type: ignore[method-assign]
    for _ in range(2):
        expected = run(plain, prompts, 16)
        requests = run(engine, prompts, 16)
        assert outputs_of(requests) == outputs_of(expected)
        plain_computed, computed = (sum(one.figures.computed_tokens for one in all_) for all_ in (expected, requests))
    assert computed < plain_computed / 2
    figures = engine.status().offload
    assert figures.blocks_back > 0
    assert figures.out_seconds > 0
    assert figures.back_seconds > 0
