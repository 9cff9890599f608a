"""Chained block hashes: equal hashes mean equal tokens from the first one on, for one tenant and one model."""

import hashlib
from array import array
from collections.abc import Sequence


def root_hash(model: str, tenant: str) -> bytes:
    """Return the parent of a sequence's first block. Lengths are hashed too, so no two pairs of names collide."""
    digest = hashlib.sha256()
    for name in (model.encode(), tenant.encode()):
        digest.update(len(name).to_bytes(8, "little"))
        digest.update(name)
    return digest.digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return SHA-256 of the parent's hash and one full block of token ids (64-bit, in the machine's byte order)."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()
