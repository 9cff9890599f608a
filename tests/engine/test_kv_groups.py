"""KV groups: which layers have a block table together, what they keep, and that a hit has what its next token sees."""

from collections.abc import Mapping
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.forking import Output
from engine.kv_cache import KVCache, KVShape
from engine.kv_groups import MAX_GROUPS, MOST_LEFT, KVGroup, divide, together
from engine.kv_layout import AttentionLayer, groups_of
from engine.offload_policy import CopyTime, Direction
from engine.request import ForkGroup, GroupFigures, Request, RequestError, RequestState, SamplingParams
from tests.engine.fakes import FakeClock, assert_as_alone, make_config, make_harness, make_request
from tests.engine.test_sliding import compute

MIXED = (None, 6)  # windows of a full and a sliding group

# --- which layers ---


def windows_of(pattern: str, times: int = 1) -> dict[int, int | None]:
    """Return layers of a pattern of s, a window of 512, and f, which sees all."""
    return dict(enumerate([None if letter == "f" else 512 for letter in pattern] * times))


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        (windows_of("ffff"), {None: [4]}),
        (windows_of("ssss"), {512: [4]}),
        (windows_of("sf", 12), {None: [12], 512: [12]}),  # gpt-oss 20B
        (windows_of("sssssf", 3), {None: [3], 512: [3] * 5}),  # Gemma 3 270M
        (windows_of("sssf", 8), {None: [8], 512: [8] * 3}),  # Cohere 2
        (windows_of("sssssf", 4) | {24: 512, 25: 512}, {None: [4], 512: [4] * 5 + [2]}),  # Gemma 3 1B
        (windows_of("f" + "s" * 31), {None: [1], 512: [5] * 6 + [1]}),  # one each would be 32 tables
        ({0: 100, 1: 4000, 2: 100, 3: 4000}, {100: [2], 4000: [2]}),
    ],
)
def test_layers_are_divided(windows: Mapping[int, int | None], sizes: Mapping[int | None, list[int]]) -> None:
    groups = divide(windows, 32_768)
    found: dict[int | None, list[int]] = {}
    for group in groups:
        found.setdefault(group.window, []).append(len(group.layers))
    assert found == sizes


def test_what_saves_nothing_is_not_divided() -> None:
    windows = windows_of("sf", 12)
    assert divide(windows, 512) == together(windows) == (KVGroup(None, tuple(range(24))),)
    assert divide({0: 100, 1: 110}, 32_768) == (KVGroup(110, (0, 1)),)


@given(
    kinds=st.lists(st.sampled_from((None, None, 16, 512, 4096)), min_size=1, max_size=70),
    longest=st.sampled_from((1, 100, 600, 8192, 131_072)),
)
def test_each_layer_is_in_one_group_with_its_like(kinds: list[int | None], longest: int) -> None:
    windows = dict(enumerate(kinds))
    groups, whole = divide(windows, longest), together(windows)
    assert sorted(chain.from_iterable(group.layers for group in groups)) == list(windows)
    assert 1 <= len(groups) <= MAX_GROUPS
    if groups != whole:
        assert all({windows[layer] for layer in group.layers} == {group.window} for group in groups)
        kept = max(len(group.layers) for group in groups) * sum(
            longest if g.window is None else min(longest, g.window) for g in groups
        )
        widest = None if None in kinds else max(window for window in kinds if window is not None)
        assert kept <= MOST_LEFT * len(windows) * (longest if widest is None else min(longest, widest))


def layer(source: int, window: int | None, num_kv_heads: int = 2) -> AttentionLayer:
    return AttentionLayer(num_heads=4, num_kv_heads=num_kv_heads, head_dim=8, window=window, source=source)


def test_shared_layers_are_their_sources() -> None:
    """The fourth sees more of the K and V of the first than that does itself."""
    layers = [layer(0, 16), layer(1, None), layer(2, 16), layer(0, 32), layer(1, None)]
    assert groups_of(layers, 10_000) == (KVGroup(32, (0,)), KVGroup(None, (1,)), KVGroup(16, (2,)))


def test_layers_of_different_shapes_stay_together_where_they_cannot_mix() -> None:
    layers = [layer(0, 16), layer(1, None, num_kv_heads=1)]
    assert groups_of(layers, 10_000, may_mix=False) == (KVGroup(None, (0, 1)),)
    assert groups_of(layers, 10_000) == (KVGroup(16, (0,)), KVGroup(None, (1,)))


@pytest.mark.parametrize(
    ("windows", "sizes", "expected"),
    [
        # Gemma 4 E2B: of 35 layers 15 have K and V of their own; full ones are twice as wide.
        (windows_of("ssssf", 3), {"s": 1, "f": 2}, {None: [3], 512: [6, 6]}),
        # Eight sliding layers take the place of four full ones.
        (windows_of("sf", 8), {"s": 1, "f": 2}, {None: [4, 4], 512: [8]}),
        # One full layer, three times as wide as the others.
        (windows_of("sssssssf"), {"s": 1, "f": 3}, {None: [1], 512: [3, 3, 1]}),
    ],
)
def test_layers_of_different_sizes_are_divided(
    windows: Mapping[int, int | None], sizes: Mapping[str, int], expected: Mapping[int | None, list[int]]
) -> None:
    taken = {layer: sizes["f" if window is None else "s"] for layer, window in windows.items()}
    found: dict[int | None, list[int]] = {}
    for group in divide(windows, 131_072, taken):
        found.setdefault(group.window, []).append(len(group.layers))
    assert found == expected


def test_blocks_of_mixed_shapes_are_one_piece_of_memory() -> None:
    """Whatever a group writes to its block lies within it, and another group's block is not touched."""
    layers = (layer(0, 16), layer(1, 16), layer(2, None, num_kv_heads=3))
    groups = groups_of(layers, 10_000)
    assert groups == (KVGroup(16, (0,)), KVGroup(16, (1,)), KVGroup(None, (2,)))
    for dtype in (torch.float32, torch.int8):
        shape = KVShape(layers, groups, block_size=4, dtype=dtype)
        cache = KVCache(shape, 5, torch.device("cpu"))
        assert shape.bytes_per_block == 2 * 4 * 3 * (8 * dtype.itemsize + 2 * (dtype is torch.int8))
        assert sum(part[0].numel() for part in cache.block_bytes()) == shape.bytes_per_block
        for block, (keys, values) in enumerate(cache.layers, start=1):
            keys[block], values[block] = block, 10 * block
        for block, (keys, values) in enumerate(cache.layers, start=1):
            assert (keys[block] == block).all()
            assert (values[block] == 10 * block).all()
        cache.copy_blocks([(3, 4), (1, 2)])
        keys, values = cache.layers[2]
        assert (keys[4] == 3).all()
        assert (values[4] == 30).all()
        assert (cache.layers[0][1][2] == 10).all()
        cache.scrub([3, 4])
        assert not keys[3:].any()


def test_groups_share_memory() -> None:
    layers = tuple(layer(index, None if index == 2 else 16) for index in range(3))
    groups = groups_of(layers, 10_000)
    shape = KVShape(layers, groups, block_size=4, dtype=torch.float32)
    cache = KVCache(shape, 5, torch.device("cpu"))
    assert cache.groups == (0, 1, 2)
    assert shape.bytes_per_block == 2 * 4 * 2 * 8 * 4  # one layer's
    assert len({key_cache.data_ptr() for key_cache, _ in cache.layers}) == 1
    assert sum(part[0].numel() for part in cache.block_bytes()) == shape.bytes_per_block


# --- how many blocks ---


def test_most_blocks() -> None:
    config = make_config(windows=(None, 6, 6), max_model_len=400, token_budget=10, max_num_seqs=4, num_blocks=75)
    assert config.most_blocks_by_group == (100, 6, 6)  # (6 + 10 - 2) // 4, three for bounds and a copy
    assert [config.most_blocks_of(tokens) for tokens in (1, 24, 25, 400)] == [3, 18, 19, 112]
    assert config.whole_blocks_of(25) == 21
    assert config.longest_sequence == 63 * 4
    assert make_config(windows=(None, 6, 6), max_model_len=400, num_blocks=2).longest_sequence == 0


def test_groups_are_needed() -> None:
    with pytest.raises(ValueError, match="windows is empty"):
        EngineConfig(num_blocks=4, max_model_len=16, windows=(), max_num_seqs=1)


def test_what_is_too_long_for_all_groups_is_refused() -> None:
    harness = make_harness(windows=MIXED, num_blocks=16, max_model_len=500, max_num_seqs=2, token_budget=6)
    assert harness.config.longest_sequence == (16 - 5) * 4
    harness.add("fits", [1, 2, 3], SamplingParams(max_tokens=41, ignore_eos=True))
    with pytest.raises(RequestError, match="above the KV cache's 44"):
        harness.add("long", [1, 2, 3], SamplingParams(max_tokens=42))
    harness.run()
    harness.assert_idle()


# --- what is kept ---


def make_manager(windows: tuple[int | None, ...] = MIXED, **changes: int) -> KVCacheManager:
    return KVCacheManager(make_config(windows=windows, **changes), "fake", FakeClock())


def test_only_sliding_groups_give_back() -> None:
    manager = make_manager((None, 6, 10), num_blocks=40)
    request = compute(manager, make_request(range(1, 31)))
    assert [table.num_slid for table in request.block_tables] == [0, 5, 4]  # as the last two tokens were computed
    assert request.num_held_blocks == 8 + 3 + 4 == manager.pool.num_held
    assert len(set(request.held_block_ids)) == 15
    assert request.figures.kv_blocks_peak == 15
    manager.release(request)
    manager.check_integrity([])
    assert manager.pool.num_held == 0


def test_the_beginning_of_a_sequence_is_reused_last() -> None:
    """Of all groups: the one without the other is no hit."""
    manager = make_manager((None, 60), num_blocks=8)
    manager.release(compute(manager, make_request(range(1, 17))))
    manager.pool.release(manager.pool.allocate(4))  # their content is lost: two places of each group
    again = make_request(range(1, 17))
    assert manager.admit(again)
    assert again.num_computed_tokens == 8


# --- what a hit needs ---


def lose(manager: KVCacheManager, request: Request, group: int, places: slice) -> None:
    """Let some of a request's blocks not be found any more."""
    manager.pool.forget(request.block_tables[group].block_ids[places])


@pytest.mark.parametrize(
    ("lost", "num_hit"),
    [
        ((), 28),
        ([(1, slice(0, 4))], 28),  # far out of the window
        ([(1, slice(5, 6))], 20),  # behind it, the window's other blocks are missing
        ([(1, slice(6, 7))], 24),
        ([(0, slice(6, 7))], 24),
        ([(0, slice(3, 4))], 12),
        ([(0, slice(3, 4)), (1, slice(2, 3))], 8),
        ([(0, slice(3, 4)), (1, slice(1, 3))], 4),
        ([(0, slice(3, 4)), (1, slice(0, 3))], 0),
        ([(0, slice(0, 1))], 0),
    ],
)
def test_a_hit_has_what_each_group_sees(lost: list[tuple[int, slice]], num_hit: int) -> None:
    manager = make_manager(num_blocks=60)
    first = compute(manager, make_request(range(1, 31)), chunk=30)  # at once: nothing has slid out
    for group, places in lost:
        lose(manager, first, group, places)
    again = make_request(range(1, 31))
    assert manager.admit(again)
    assert again.num_computed_tokens == num_hit
    num_places, num_slid = num_hit // 4, max(0, num_hit - 6 + 1) // 4
    assert [table.num_slid for table in again.block_tables] == [0, num_slid]
    for mine, theirs in zip(again.block_tables, first.block_tables, strict=True):
        assert mine.held == theirs.block_ids[mine.num_slid : num_places]
    manager.check_integrity([first, again])


def test_each_group_moves_the_end_for_the_others() -> None:
    manager = make_manager((6, None, 10), num_blocks=60)
    first = compute(manager, make_request(range(1, 40)), chunk=39)
    lose(manager, first, 0, slice(8, 9))
    lose(manager, first, 2, slice(7, 8))
    again = make_request(range(1, 40))
    assert manager.admit(again)
    assert again.num_computed_tokens == 28
    assert [table.num_slid for table in again.block_tables] == [5, 0, 4]


def test_a_partly_filled_block_is_copied_in_each_group() -> None:
    for num_blocks, fits in ((5, False), (6, True)):
        manager = make_manager(num_blocks=num_blocks)
        holder = compute(manager, make_request(range(1, 7)))
        other = make_request(range(1, 7), [9])
        holder.group = other.group = ForkGroup(GroupFigures(0.0), [holder, other])
        holder.state = RequestState.RUNNING
        assert manager.admit(other) is fits
        if fits:
            assert manager.grow(other, 7)
            assert len(manager.take_transfers()) == 2
            assert not set(holder.held_block_ids[2:]) & set(other.held_block_ids[2:])


def test_drafts_get_blocks_of_all_groups_or_none() -> None:
    manager = make_manager(num_blocks=5)
    request = compute(manager, make_request(range(1, 9)))
    assert request.num_held_blocks == 4
    assert manager.extend(request, 8)
    assert not manager.extend(request, 9)
    manager.check_integrity([request])
    assert request.num_held_blocks == 4


def test_a_block_saves_a_part_of_computing_its_tokens() -> None:
    """Blocks of four tokens, which take a second each; two groups have two blocks of them."""
    for windows, seconds in (((None,), 4.0), (MIXED, 2.0)):
        offload = make_manager(windows, num_host_blocks=1).offload
        offload.note_step(100, 1, 100.0, [CopyTime(Direction.BACK, 1, seconds)])
        assert offload.policy.restores()
        offload.note_step(100, 1, 100.0, [CopyTime(Direction.BACK, 1, seconds + 1.0)])
        assert not offload.policy.restores()


# --- engines ---

LONG = SamplingParams(max_tokens=60, ignore_eos=True)
SIZES = {"max_model_len": 200, "max_num_seqs": 3, "token_budget": 12}


def test_outputs_with_preemptions_and_hits() -> None:
    harness = make_harness(windows=(None, 6, 6, 11), num_blocks=60, **SIZES)
    prompts = [[*range(1, 21), index] for index in range(4)]
    for _ in range(2):
        requests = [harness.add(str(index), prompt, LONG) for index, prompt in enumerate(prompts)]
        harness.run()
        for request in requests:
            assert_as_alone(request, harness.config.windows)
        harness.assert_idle()
    assert harness.engine.status().preemptions > 0
    assert sum(request.figures.prefix_hit_tokens for request in requests) > 0


def test_forks_share_each_groups_blocks() -> None:
    harness = make_harness(windows=(None, 6), num_blocks=90, **SIZES)
    outputs = [Output(SamplingParams(max_tokens=30, ignore_eos=True, seed=seed)) for seed in range(3)]
    requests = harness.engine.add_group("group", list(range(1, 24)), outputs)
    harness.run()
    for request in requests:
        assert_as_alone(request, harness.config.windows)
    assert sum(request.figures.computed_tokens for request in requests) == 23 + 2 + 3 * 29
    copies = [transfer for plan in harness.runner.plans for transfer in plan.transfers]
    assert len(copies) == 2 * 2  # the prompt's last block, in each group, for all but the last to write to it
    harness.assert_idle()


def test_host_keeps_blocks_of_each_group() -> None:
    harness = make_harness(windows=(None, 6), num_blocks=18, num_host_blocks=60, **SIZES)
    prompt = range(1, 22)
    for name, tokens in (("first", prompt), ("other", range(9, 30)), ("again", prompt)):
        last = harness.add(name, tokens, SamplingParams(max_tokens=20, ignore_eos=True))
        harness.run()
        assert_as_alone(last, harness.config.windows)
    assert last.figures.prefix_hit_tokens == 20
    assert harness.engine.status().offload.blocks_back >= 5


def test_memory_of_a_long_sequence_is_a_fraction() -> None:
    """A full layer to each five sliding ones, 120 tokens: ten windows."""
    peaks = []
    for windows in ((None,), (None, 12, 12, 12, 12, 12)):
        harness = make_harness(windows=windows, num_blocks=400, **SIZES)
        request = harness.add("r", range(1, 31), SamplingParams(max_tokens=90, ignore_eos=True))
        harness.run()
        peaks.append(request.figures.kv_blocks_peak)
    whole = peaks[0] * 6  # blocks of as many layers as the others
    assert whole == 30 * 6
    assert peaks[1] <= 30 + 5 * 7  # of which windows and a step take five times seven at the most
