"""Offloading: blocks that are about to be overwritten go to the host's memory, and come back when a prefix has them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.forking import BlockCopy
from engine.host_tier import HostTier, Restore, Spill
from engine.offload_policy import CopyTime, Direction, OffloadPolicy

Transfer: TypeAlias = BlockCopy | Spill | Restore


@dataclass(frozen=True, slots=True)
class OffloadFigures:
    """What offloading has done since the engine was made. Seconds are those of the copies measured so far."""

    num_slots: int = 0  # blocks that the host's memory can hold; 0 is no offloading
    num_used: int = 0  # blocks that it holds
    blocks_out: int = 0
    blocks_back: int = 0  # hits: each is a block of tokens not computed again
    out_seconds: float = 0.0
    back_seconds: float = 0.0


class Offload:
    """Decides what is copied out and back, and writes it into `transfers`, to be made in that order.

    The order is all the fence there is: a block is spilled before anything is written to it, and restored before the
    step reads it, because everything is listed in the order in which it was decided.
    """

    def __init__(
        self, num_slots: int, tokens_per_block: float, clock: Callable[[], float], transfers: list[Transfer]
    ) -> None:
        """`tokens_per_block` is how many tokens take as long to compute as a block saves."""
        self.host = HostTier(num_slots)
        self.policy = OffloadPolicy(tokens_per_block, clock)
        self._transfers = transfers
        self._spared: Collection[bytes] = ()
        self._num_blocks = dict.fromkeys(Direction, 0)
        self._seconds = dict.fromkeys(Direction, 0.0)

    def spill(self, block_id: int, block_hash: bytes) -> None:
        """Keep the content of a block that is about to get another, if that is worth it."""
        if not self.host.num_slots or not self.policy.spills():
            return
        slot = self.host.put(block_hash, self._spared)
        if slot is not None:
            self._transfers.append(Spill(block_id, slot))
            self._num_blocks[Direction.OUT] += 1

    def has(self, block_hash: bytes) -> bool:
        """Whether this content is to be had from the host, and quicker than by computing it."""
        return self.host.find(block_hash) is not None and self.policy.restores()

    def restore(self, block_hashes: Sequence[bytes], allocate: Callable[[int], list[int]]) -> list[int]:
        """Return blocks that get these contents, all of which the host has. `allocate` may spill others meanwhile."""
        self._spared = set(block_hashes)
        block_ids = allocate(len(block_hashes))
        self._spared = ()
        for block_hash, block_id in zip(block_hashes, block_ids, strict=True):
            self._transfers.append(Restore(self.host.use(block_hash), block_id))
        self._num_blocks[Direction.BACK] += len(block_ids)
        return block_ids

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Drop contents that are not to be trusted."""
        self.host.forget(block_hashes)

    def note_step(self, num_tokens: int, num_requests: int, seconds: float, copies: Iterable[CopyTime]) -> None:
        """Take in what a step took, `seconds` without its copies, and the copies that were measured since the last."""
        self.policy.note_step(num_tokens, num_requests, seconds)
        for time in copies:
            self.policy.note_copies(time)
            self._seconds[time.direction] += time.seconds

    def figures(self) -> OffloadFigures:
        return OffloadFigures(
            num_slots=self.host.num_slots,
            num_used=self.host.num_used,
            blocks_out=self._num_blocks[Direction.OUT],
            blocks_back=self._num_blocks[Direction.BACK],
            out_seconds=self._seconds[Direction.OUT],
            back_seconds=self._seconds[Direction.BACK],
        )
