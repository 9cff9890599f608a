"""The host tier: which blocks that the device no longer has are kept in host memory. Nothing is copied here."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spill:
    """A block whose content is to be copied into a slot of the host's memory."""

    block_id: int
    slot: int


@dataclass(frozen=True, slots=True)
class Restore:
    """A slot of the host's memory whose content a block is to have again."""

    slot: int
    block_id: int


class HostTier:
    """A fixed set of slots, each with the content of one block, by block hash. The least recently used goes first."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # by block hash, least recently used first
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_used(self) -> int:
        return len(self._slots)

    def find(self, block_hash: bytes) -> int | None:
        """Return the slot with this content, or None."""
        return self._slots.get(block_hash)

    def use(self, block_hash: bytes) -> int:
        """Return the slot with this content, which is there, and let it go last."""
        self._slots.move_to_end(block_hash)
        return self._slots[block_hash]

    def put(self, block_hash: bytes, spared: Collection[bytes] = ()) -> int | None:
        """Return the slot that is to get this content; None where it is there already, or there is no room beside what
        is `spared`."""
        if block_hash in self._slots:
            self._slots.move_to_end(block_hash)
            return None
        if not self._free:
            oldest = next((known for known in self._slots if known not in spared), None)
            if oldest is None:
                return None
            self.forget((oldest,))
        self._slots[block_hash] = self._free.pop()
        return self._slots[block_hash]

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Let these contents, as far as they are there, not be found any more."""
        for block_hash in block_hashes:
            slot = self._slots.pop(block_hash, None)
            if slot is not None:
                self._free.append(slot)

    def forget_all(self) -> None:
        self.forget(list(self._slots))

    def check_integrity(self) -> None:
        """Raise AssertionError unless each slot is free or has one content."""
        assert sorted([*self._free, *self._slots.values()]) == list(range(self.num_slots)), "slots are lost or doubled"
