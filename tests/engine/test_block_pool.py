"""The block pool: counts, content names and the order of reuse."""

import pytest

from engine.block_pool import BlockPool


def test_new_blocks_come_in_order_and_count_once() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert (pool.num_free, pool.num_held, pool.num_cached) == (1, 3, 0)
    assert pool.is_free(3)
    pool.check_integrity([[0, 1, 2]])


def test_too_many_blocks_takes_none() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(ValueError, match="2 blocks asked for, 1 free"):
        pool.allocate(2)
    assert pool.num_free == 1
    pool.check_integrity([[0]])


def test_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    pool.share(table)
    pool.check_integrity([table, table])
    pool.release(table)
    assert not pool.is_free(0)
    pool.release(table)
    assert pool.is_free(0)
    pool.check_integrity([])


def test_least_recently_released_is_reused_first() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.release(second)
    pool.release(first)
    # Of one table the tail goes first.
    assert pool.allocate(4) == [3, 2, 1, 0]


def test_sharing_a_free_block_saves_it_from_reuse() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    pool.cache(2, b"content")
    pool.release(table)
    pool.share([2])
    assert pool.find(b"content") == 2
    assert pool.allocate(2) == [1, 0]
    pool.release([2])
    assert pool.find(b"content") == 2  # free again, still named
    pool.check_integrity([[1, 0]])


def test_content_is_forgotten_when_its_block_is_reused() -> None:
    pool = BlockPool(2)
    table = pool.allocate(2)
    pool.cache(0, b"head")
    pool.cache(1, b"tail")
    pool.release(table)
    assert pool.num_cached == 2
    assert pool.allocate(1) == [1]
    assert pool.find(b"tail") is None
    assert pool.find(b"head") == 0
    pool.check_integrity([[1]])


def test_second_block_with_the_same_content_stays_nameless() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.cache(0, b"same")
    pool.cache(1, b"same")
    assert pool.find(b"same") == 0
    pool.check_integrity([[0], [1]])
    pool.forget([1])
    assert pool.find(b"same") == 0
    pool.forget([0])
    assert pool.find(b"same") is None
    pool.check_integrity([[0], [1]])


def test_renamed_block_loses_its_old_name() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.cache(0, b"old")
    pool.cache(0, b"new")
    assert pool.find(b"old") is None
    assert pool.find(b"new") == 0
    pool.check_integrity([[0]])


def test_forget_all_keeps_holders() -> None:
    pool = BlockPool(3)
    table = pool.allocate(2)
    pool.cache(0, b"a")
    pool.cache(1, b"b")
    pool.forget_all()
    assert pool.num_cached == 0
    assert pool.num_held == 2
    pool.check_integrity([table])


def test_integrity_check_sees_a_leak() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    with pytest.raises(AssertionError, match="reference counts differ"):
        pool.check_integrity([])
    with pytest.raises(AssertionError, match="names a block twice"):
        pool.check_integrity([table * 2])
