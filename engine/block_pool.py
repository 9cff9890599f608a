"""The block pool: which KV blocks are held, by how many requests, and which free ones still hold reusable content."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Fixed set of blocks with reference counts, content hashes and LRU reuse.

    A block whose count falls to zero goes to the back of the free queue and keeps its hash: until it is taken from the
    front for new content, a request with the same prefix gets it back.
    """

    def __init__(self, num_blocks: int, on_loss: Callable[[int, bytes], None] | None = None) -> None:
        """`on_loss` is told of each block whose content is about to be overwritten, with its hash."""
        self.num_blocks = num_blocks
        self._on_loss = on_loss
        self._ref_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._block_of_hash: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._num_reusable = 0

    @property
    def num_free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks with a known content hash, held or free."""
        return len(self._block_of_hash)

    @property
    def num_reusable(self) -> int:
        """Blocks that no request holds, with a known content hash."""
        return self._num_reusable

    @property
    def ref_counts(self) -> Sequence[int]:
        """How many requests hold each block."""
        return self._ref_counts

    def find(self, block_hash: bytes) -> int | None:
        """Return the block with this content, or None."""
        return self._block_of_hash.get(block_hash)

    def hashes_of(self, block_ids: Iterable[int]) -> list[bytes]:
        """Return the content hashes of those blocks that have one."""
        return [block_hash for block_id in block_ids if (block_hash := self._hashes[block_id]) is not None]

    def is_free(self, block_id: int) -> bool:
        return block_id in self._free

    def is_writable(self, block_id: int) -> bool:
        """Whether its one holder may change what is in it: nobody else reads it, or will find it by its hash."""
        return self._ref_counts[block_id] == 1 and self._hashes[block_id] is None

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, least recently used first, each with one reference and no content.

        Raises ValueError when fewer are free; nothing is taken then.
        """
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in blocks:
            block_hash = self._hashes[block_id]
            if block_hash is not None and self._on_loss is not None:
                self._on_loss(block_id, block_hash)
            self._forget(block_id)
            self._ref_counts[block_id] = 1
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each block; a free one is taken out of the free queue, content intact."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free[block_id]
                self._num_reusable -= self._hashes[block_id] is not None
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop a reference to each block of a block table.

        The table's tail is freed first, so that of one sequence the leading blocks, the likeliest to be shared, are
        reused for new content last.
        """
        for block_id in reversed(block_ids):
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free[block_id] = None
                self._num_reusable += self._hashes[block_id] is not None

    def cache(self, block_id: int, block_hash: bytes) -> None:
        """Name a block's content. Content that another block already has keeps that block: duplicates stay nameless."""
        if block_hash not in self._block_of_hash:
            self._forget(block_id)
            self._block_of_hash[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def forget(self, block_ids: Iterable[int]) -> None:
        """Drop the content hashes of blocks whose content is not to be trusted; who holds them keeps them."""
        for block_id in block_ids:
            self._forget(block_id)

    def forget_all(self) -> None:
        """Drop every content hash."""
        self.forget(list(self._block_of_hash.values()))

    def _forget(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._block_of_hash[block_hash]
            self._hashes[block_id] = None
            self._num_reusable -= self._ref_counts[block_id] == 0

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless the counts equal the references in the tables and every index agrees."""
        counts = [0] * self.num_blocks
        for table in block_tables:
            assert len(set(table)) == len(table), f"a block table names a block twice: {table}"
            for block_id in table:
                counts[block_id] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        assert set(self._free) == {b for b, count in enumerate(counts) if count == 0}, "free queue differs from counts"
        named = {block_hash: b for b, block_hash in enumerate(self._hashes) if block_hash is not None}
        assert named == self._block_of_hash, "hash index differs from the blocks' hashes"
        reusable = sum(block_id in self._free for block_id in named.values())
        assert self._num_reusable == reusable, "the number of reusable blocks differs"
