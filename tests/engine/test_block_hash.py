"""Block hashes: equal only for equal histories of one tenant on one model."""

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_hash import block_hash, root_hash

TOKENS = st.lists(st.integers(0, 2**20), min_size=1, max_size=8)


def test_hash_is_sha256_of_parent_and_tokens() -> None:
    parent = root_hash("model", "tenant")
    assert block_hash(parent, [1, 2**40]) == hashlib.sha256(parent + struct.pack("<qq", 1, 2**40)).digest()


@given(TOKENS, TOKENS)
def test_equal_only_for_equal_tokens(left: list[int], right: list[int]) -> None:
    parent = root_hash("model", "tenant")
    assert (block_hash(parent, left) == block_hash(parent, right)) == (left == right)


def test_a_block_depends_on_all_before_it() -> None:
    root = root_hash("model", "tenant")
    assert block_hash(block_hash(root, [1, 2]), [5, 6]) != block_hash(block_hash(root, [1, 3]), [5, 6])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("model", "a"), ("model", "b")),
        (("model-1", ""), ("model-2", "")),
        (("model", "x"), ("modelx", "")),
        (("ab", "c"), ("a", "bc")),
        (("é", ""), ("e", "x")),
    ],
)
def test_roots_differ_by_model_and_tenant(left: tuple[str, str], right: tuple[str, str]) -> None:
    assert root_hash(*left) != root_hash(*right)
