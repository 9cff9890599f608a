"""Whose time each KV block spends: a block that several requests hold at once is shared out among them."""

from collections.abc import Iterable, Sequence

from engine.request import Request

NS = 1_000_000_000  # nanoseconds in a second


class BlockLedger:
    """Block time in nanoseconds, at the cost of what changes: a block is looked at when a request takes it or gives it
    back, never in between.

    Each block has a meter of what ONE of its holders owes since the beginning: it runs at full speed while one request
    holds the block, at half while two do. What a request owes is the meter's way from the taking to the giving back.

    `advance` comes before every change; what changes then, changes at that time. The nanoseconds that cannot be divided
    evenly go to whoever makes the change, so that the requests' shares add up to `held_ns` exactly.
    """

    def __init__(self, num_blocks: int, now_ns: int) -> None:
        self.held_ns = 0  # blocks that somebody holds, each counted once
        self.cached_ns = 0  # blocks that nobody holds, but whose content is kept
        self._now_ns = now_ns
        self._num_held = 0
        self._holders = [0] * num_blocks
        self._meters = [0] * num_blocks
        self._read_at = [now_ns] * num_blocks

    def advance(self, now_ns: int, num_cached: int) -> None:
        """Count the time until now, through which `num_cached` blocks were kept that nobody held."""
        passed = now_ns - self._now_ns
        self.held_ns += passed * self._num_held
        self.cached_ns += passed * num_cached
        self._now_ns = now_ns

    def take(self, request: Request, block_ids: Iterable[int]) -> None:
        """Let a request pay for these blocks too from now on."""
        figures = request.figures
        for block_id in block_ids:
            if not self._holders[block_id]:
                self._num_held += 1
            figures.kv_block_share_ns += self._read(block_id)
            figures.kv_block_meter_ns += self._meters[block_id]
            self._holders[block_id] += 1

    def give_back(self, request: Request, block_ids: Sequence[int]) -> None:
        """End what a request pays for its blocks, which are all that it has."""
        self.settle(request, block_ids)
        request.figures.kv_block_meter_ns = 0
        for block_id in block_ids:
            self._drop(block_id)

    def let_go(self, request: Request, block_id: int) -> None:
        """End what a request pays for one of its blocks. Its share is up to date again when it is next settled."""
        request.figures.kv_block_share_ns += self._read(block_id) + self._meters[block_id]
        self._drop(block_id)

    def _drop(self, block_id: int) -> None:
        self._holders[block_id] -= 1
        if not self._holders[block_id]:
            self._num_held -= 1

    def settle(self, request: Request, block_ids: Iterable[int]) -> None:
        """Bring a request's share up to now; it goes on holding its blocks, which are all that it has."""
        figures = request.figures
        meters = 0
        for block_id in block_ids:
            figures.kv_block_share_ns += self._read(block_id)
            meters += self._meters[block_id]
        figures.kv_block_share_ns += meters - figures.kv_block_meter_ns
        figures.kv_block_meter_ns = meters

    def _read(self, block_id: int) -> int:
        """Bring a block's meter up to now. Returns the nanoseconds that its holders cannot divide evenly."""
        passed = self._now_ns - self._read_at[block_id]
        self._read_at[block_id] = self._now_ns
        holders = self._holders[block_id]
        if not passed or not holders:
            return 0
        each, rest = divmod(passed, holders)
        self._meters[block_id] += each
        return rest

    def check_integrity(self, ref_counts: Sequence[int]) -> None:
        """Raise AssertionError unless the holders are those of the pool."""
        assert self._holders == list(ref_counts), "the ledger's holders differ from the pool's references"
        assert self._num_held == sum(count > 0 for count in ref_counts), "the number of blocks held differs"


def nanoseconds(seconds: float) -> int:
    """Return a clock's seconds in the ledger's unit."""
    return round(seconds * NS)
