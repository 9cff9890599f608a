"""The cache manager: prefix hits on admission, room, and the account of blocks."""

from engine.cache_manager import KVCacheManager
from engine.request import Request
from tests.engine.fakes import FakeClock, make_config, make_request


def make_manager(clock: FakeClock | None = None, **changes: int | bool) -> KVCacheManager:
    return KVCacheManager(make_config(**changes), "fake", clock or FakeClock())


def fill(manager: KVCacheManager, request: Request) -> Request:
    """Admit a request and compute all its known tokens."""
    assert manager.admit(request)
    assert manager.grow(request, request.num_tokens)
    manager.cache_blocks(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    return request


def test_hits_are_full_blocks_of_an_equal_prefix() -> None:
    manager = make_manager()
    first = fill(manager, make_request(range(1, 15)))
    second = make_request([*range(1, 11), 20, 21, 22, 23])
    assert manager.admit(second)
    assert second.num_computed_tokens == 8  # tokens 9 and 10 are equal too, but their block is not
    assert second.held_block_ids == first.held_block_ids[:2]
    manager.check_integrity([first, second])


def test_last_known_token_is_never_a_hit() -> None:
    manager = make_manager()
    first = fill(manager, make_request(range(1, 9)))
    same = make_request(range(1, 9))
    assert manager.admit(same)
    assert same.num_computed_tokens == 4
    longer = make_request(range(1, 10))
    assert manager.admit(longer)
    assert longer.num_computed_tokens == 8
    manager.check_integrity([first, same, longer])


def test_blocks_of_a_finished_request_are_hit_until_reused() -> None:
    manager = make_manager(num_blocks=4)
    manager.release(fill(manager, make_request(range(1, 10))))
    again = make_request(range(1, 10))
    assert manager.admit(again)
    assert again.num_computed_tokens == 8
    manager.release(again)
    manager.release(fill(manager, make_request(range(11, 27))))  # takes all four blocks
    late = make_request(range(1, 10))
    assert manager.admit(late)
    assert late.num_computed_tokens == 0
    manager.check_integrity([late])


def test_partly_evicted_sequence_keeps_its_head() -> None:
    manager = make_manager(num_blocks=4)
    manager.release(fill(manager, make_request(range(1, 14))))
    manager.release(fill(manager, make_request(range(20, 25))))  # two blocks: the unnamed last one and the tail
    again = make_request(range(1, 14))
    assert manager.admit(again)
    assert again.num_computed_tokens == 8
    manager.check_integrity([again])


def test_output_blocks_are_hit_too() -> None:
    manager = make_manager()
    manager.release(fill(manager, make_request(range(1, 6), range(6, 13))))
    follow_up = make_request(range(1, 20))
    assert manager.admit(follow_up)
    assert follow_up.num_computed_tokens == 12


def test_tenants_and_disabled_caching_share_nothing() -> None:
    manager = make_manager()
    fill(manager, make_request(range(1, 10), tenant="a"))
    other = make_request(range(1, 10), tenant="b")
    assert manager.admit(other)
    assert other.num_computed_tokens == 0
    off = make_manager(enable_prefix_caching=False)
    fill(off, make_request(range(1, 10)))
    same = make_request(range(1, 10))
    assert off.admit(same)
    assert same.num_computed_tokens == 0
    assert off.pool.num_cached == 0


def test_no_room_changes_nothing() -> None:
    manager = make_manager(num_blocks=4)
    held = fill(manager, make_request(range(1, 10)))
    request = make_request(range(11, 16))
    assert not manager.admit(request)
    assert request.block_tables == []
    assert not manager.grow(held, 17)
    assert held.num_held_blocks == 3
    assert manager.grow(held, 16)
    manager.check_integrity([held])


def test_free_hits_need_room_as_well() -> None:
    """A hit on a free block takes it out of the free queue, so it does not leave that room to the rest."""
    manager = make_manager(num_blocks=4)
    manager.release(fill(manager, make_request(range(1, 10))))
    held = fill(manager, make_request([30]))
    assert manager.pool.num_free == 3
    request = make_request(range(1, 14))
    assert not manager.admit(request)  # two hits and two more
    assert request.block_tables == []
    shorter = make_request(range(1, 12))
    assert manager.admit(shorter)
    assert manager.grow(shorter, shorter.num_tokens)
    manager.check_integrity([held, shorter])


def test_each_block_is_hashed_once() -> None:
    manager = make_manager()
    request = fill(manager, make_request(range(1, 14)))
    hashes = list(request.block_hashes)
    assert len(hashes) == 3
    manager.release(request)
    assert manager.admit(request)
    assert all(old is new for old, new in zip(hashes, request.block_hashes, strict=True))


def test_peak_and_block_seconds() -> None:
    clock = FakeClock()
    manager = make_manager(clock)
    request = make_request(range(1, 10))
    request.figures.blocks_changed_at = clock.now
    clock.now += 50.0  # waiting costs nothing
    assert manager.admit(request)
    assert manager.grow(request, 4)
    clock.now += 2.0
    assert manager.grow(request, 9)
    manager.cache_blocks(request, 9)
    clock.now += 0.5
    manager.release(request)
    assert request.figures.kv_block_seconds == 1 * 2.0 + 3 * 0.5
    clock.now += 10.0
    assert manager.admit(request)  # two hits at once
    clock.now += 1.0
    manager.release(request)
    assert request.figures.kv_block_seconds == 3.5 + 2 * 1.0
    assert request.figures.kv_blocks_peak == 3
