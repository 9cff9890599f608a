"""The KV cache manager: gives requests their blocks, finds prefix hits and keeps the accounts of blocks held."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from engine.block_ledger import BlockLedger, nanoseconds
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.forking import BlockCopy, shared_prompt
from engine.kv_groups import num_slid_blocks
from engine.offloading import Offload, Transfer
from engine.prefix_hits import Hits, PrefixHits
from engine.request import BlockTable, Request


class KVCacheManager:
    """Block tables over one pool, one a request and KV group. `clock` returns seconds; only differences are used."""

    def __init__(self, config: EngineConfig, model_name: str, clock: Callable[[], float]) -> None:
        self._transfers: list[Transfer] = []
        tokens_per_block = config.block_size / len(config.windows)  # it is a part of what these tokens take
        self.offload = Offload(config.num_host_blocks, tokens_per_block, clock, self._transfers)
        self.pool = BlockPool(config.num_blocks, self.offload.spill)
        self.block_ledger = BlockLedger(config.num_blocks, nanoseconds(clock()))
        self._hits = PrefixHits(config, model_name, self.pool, self.offload)
        self._block_size = config.block_size
        self._windows = config.windows
        by_window = {window: [g for g, w in enumerate(config.windows) if w == window] for window in config.windows}
        self._sliding = [(window, groups) for window, groups in by_window.items() if window is not None]
        self._most_blocks = config.most_blocks_by_group
        self._caching = config.enable_prefix_caching
        self._clock = clock

    def admit(self, request: Request) -> bool:
        """Give a request without blocks its prefix hits, if all its known tokens fit beside what is held now.

        Sets `num_computed_tokens` to the tokens hit. The last known token is never a hit: its logits are needed. What a
        request of its group holds of the prompt is a hit too, the partly filled block at its end included.
        Returns False, with nothing changed, when there is no room.
        """
        may_hit = self._caching and not request.lacks_prompt_logprobs
        hits, num_hit = self._hits.find(request) if may_hit else ([[] for _ in self._windows], 0)
        shared = shared_prompt(request)
        if shared is not None and shared.num_tokens > num_hit:
            found = self._held_for(shared.holder, shared.num_tokens)
            hits, num_hit = (hits, num_hit) if found is None else (found, shared.num_tokens)
        if self._num_needed(request, hits, num_hit) > self.pool.num_free:
            return False
        self._reuse(request, hits, num_hit)
        return True

    def num_hit(self, request: Request) -> int:
        """Return how many tokens `admit` would find in others' blocks now."""
        return self._hits.find(request)[1] if self._caching else 0

    def _num_needed(self, request: Request, hits: Hits, num_hit: int) -> int:
        """Return how many free blocks a request takes until all its known tokens are computed, those among its hits
        included."""
        stop = -(-num_hit // self._block_size)
        is_partial = num_hit % self._block_size > 0  # such a block is copied before it is written to, in each group
        num_free_hits = sum(block_id is None or self.pool.is_free(block_id) for one in hits for block_id in one)
        num_blocks = -(-request.num_tokens // self._block_size)
        num_new = sum(
            max(0, min(num_blocks - (stop - len(one)), most) - len(one))
            for one, most in zip(hits, self._most_blocks, strict=True)
        )
        return num_new + is_partial * len(hits) + num_free_hits

    def fork(self, holder: Request, request: Request) -> None:
        """Give a request without blocks those that hold its prompt in `holder`; it takes no block of its own yet."""
        num_tokens = min(request.num_prompt_tokens, request.num_tokens - 1)
        blocks = self._held_for(holder, num_tokens)
        assert blocks is not None, "a prompt just computed has not slid out"
        self._reuse(request, blocks, num_tokens)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the block tables to hold `num_tokens` tokens, and put copies in the place of blocks that are written
        to next where others read them too; see `take_transfers`. Gives back what slid out of windows. Returns False,
        with nothing else changed, without room."""
        self._slide(request)
        tables = request.block_tables
        num_places = request.num_table_blocks
        missing = max(0, -(-num_tokens // self._block_size) - num_places)
        written = request.num_computed_tokens // self._block_size
        shared: list[BlockTable] = []
        if written < num_places:
            shared = [table for table in tables if not self.pool.is_writable(table.block_ids[written])]
        num_taken = missing * len(tables) + len(shared)
        if not num_taken:
            return True
        if num_taken > self.pool.num_free:
            return False
        self._account(request)
        taken = iter(self.pool.allocate(num_taken))
        for table in tables:
            self._take(request, table, list(islice(taken, missing)))
        for table, copy in zip(shared, taken, strict=True):
            self._replace(request, table, written, copy)
        return True

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Extend the block tables of a request that `grow` made ready for this step and whose blocks may be named
        since: none is copied now. They then hold `num_tokens` tokens. Returns False, with nothing changed, without
        room."""
        missing = -(-num_tokens // self._block_size) - request.num_table_blocks
        if missing * len(request.block_tables) > self.pool.num_free:
            return False
        if missing > 0:
            self._account(request)
            for table in request.block_tables:
                self._take(request, table, self.pool.allocate(missing))
        return True

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Return what is to be copied before the next step's first write; it is its plan's from now on."""
        transfers = tuple(self._transfers)
        self._transfers.clear()
        return transfers

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Offer the blocks filled by the first `num_tokens` known tokens to the prefix cache.

        Called when those tokens are scheduled: each layer stores a step's KV before it attends, so a request admitted
        into the same step may already share them.
        """
        if not self._caching:
            return
        num_full = num_tokens // self._block_size
        if num_full <= request.num_cached_blocks:
            return
        self._hits.extend_hashes(request, num_full)
        for index in range(request.num_cached_blocks, num_full):
            for table, name in zip(request.block_tables, self._hits.names(request, index), strict=True):
                self.pool.cache(table.block_ids[index], name)
        request.num_cached_blocks = num_full

    def release(self, request: Request) -> None:
        """Give all blocks back; their content stays reusable until it is overwritten."""
        self._account(request)
        held = request.held_block_ids
        self.block_ledger.give_back(request, held)
        self.pool.release(held)
        if request.group is not None:
            request.group.figures.give_back(held, self._clock())
        request.block_tables.clear()
        request.num_cached_blocks = 0
        request.num_computed_tokens = 0

    def forget(self, block_ids: Sequence[int]) -> None:
        """Let the content of blocks that are held not be reused, nor what the host has of the same."""
        self.offload.forget(self.pool.hashes_of(block_ids))
        self.pool.forget(block_ids)

    def forget_all(self) -> None:
        """Let no block's content be reused."""
        self.advance(nanoseconds(self._clock()))
        self.offload.host.forget_all()
        self.pool.forget_all()

    def settle(self, request: Request) -> None:
        """Bring a request's share of block time up to the last `advance`; it goes on holding its blocks."""
        self.block_ledger.settle(request, request.held_block_ids)

    def advance(self, now_ns: int) -> None:
        """Bring the account of all blocks up to now; before anything changes who holds what, or what is cached."""
        self.block_ledger.advance(now_ns, self.pool.num_reusable)

    def _slide(self, request: Request) -> None:
        """Give back the blocks that slid out of windows; their content stays reusable."""
        for window, groups in self._sliding:
            num_slid = num_slid_blocks(window, request.num_computed_tokens, self._block_size)
            if num_slid <= request.block_tables[groups[0]].num_slid:  # they slide alike
                continue
            self._account(request)
            for group in groups:
                table = request.block_tables[group]
                gone = table.block_ids[table.num_slid : num_slid]
                self._let_go(request, gone)
                table.block_ids[table.num_slid : num_slid] = [0] * len(gone)
                table.num_slid = num_slid

    def _held_for(self, holder: Request, num_tokens: int) -> Hits | None:
        """Return the holder's blocks that a token behind its first `num_tokens` sees; None where one has slid out."""
        stop = -(-num_tokens // self._block_size)
        firsts = [num_slid_blocks(window, num_tokens, self._block_size) for window in self._windows]
        if any(first < table.num_slid for first, table in zip(firsts, holder.block_tables, strict=True)):
            return None
        return [table.block_ids[first:stop] for first, table in zip(firsts, holder.block_tables, strict=True)]

    def _reuse(self, request: Request, hits: Hits, num_tokens: int) -> None:
        """Let a request without blocks hold these, which have the KV of its first `num_tokens` tokens, but for what
        slid out of windows; None is a block that the host has."""
        self._account(request)
        self.pool.share(block_id for one in hits for block_id in one if block_id is not None)
        stop = -(-num_tokens // self._block_size)
        for block_ids in self._restored(request, hits, stop):
            num_slid = stop - len(block_ids)
            table = BlockTable([0] * num_slid, num_slid)
            request.block_tables.append(table)
            self._take(request, table, block_ids)
        request.num_cached_blocks = num_tokens // self._block_size
        request.num_computed_tokens = num_tokens

    def _restored(self, request: Request, hits: Hits, stop: int) -> list[list[int]]:
        """Return the hits, which end before the block `stop`, with those that the host has in blocks again, which have
        a reference and a name."""
        missing = [
            self._hits.name(request, stop - len(one) + offset, group)
            for group, one in enumerate(hits)
            for offset, block_id in enumerate(one)
            if block_id is None
        ]
        restored = self.offload.restore(missing, self.pool.allocate)
        for name, block_id in zip(missing, restored, strict=True):
            self.pool.cache(block_id, name)
        in_order = iter(restored)
        return [[next(in_order) if block_id is None else block_id for block_id in one] for one in hits]

    def _take(self, request: Request, table: BlockTable, block_ids: list[int]) -> None:
        """Put blocks that a request has a reference to at the end of one of its tables."""
        self._hold(request, block_ids)
        table.block_ids.extend(block_ids)
        request.figures.kv_blocks_peak = max(request.figures.kv_blocks_peak, request.num_held_blocks)

    def _replace(self, request: Request, table: BlockTable, index: int, copy: int) -> None:
        """Put a block that is to become a copy, and has a reference, in the place of the one at `index`."""
        original = table.block_ids[index]
        self._hold(request, (copy,))
        table.block_ids[index] = copy
        self._let_go(request, (original,))
        self._transfers.append(BlockCopy(original, copy))

    def _hold(self, request: Request, block_ids: Sequence[int]) -> None:
        """Enter in the accounts that a request holds these too."""
        self.block_ledger.take(request, block_ids)
        if request.group is not None:
            request.group.figures.take(block_ids, self._clock())

    def _let_go(self, request: Request, block_ids: Sequence[int]) -> None:
        """Give some of a request's blocks back."""
        for block_id in block_ids:
            self.block_ledger.let_go(request, block_id)
        self.pool.release(block_ids)
        if request.group is not None:
            request.group.figures.give_back(block_ids, self._clock())

    def _account(self, request: Request) -> None:
        """Add the blocks held since the last change to the request's block-seconds, and all blocks' times."""
        now, figures = self._clock(), request.figures
        figures.kv_block_seconds += request.num_held_blocks * (now - figures.blocks_changed_at)
        figures.blocks_changed_at = now
        self.advance(nanoseconds(now))

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless the pool agrees with the requests' block tables and these with their tokens."""
        held = []
        for request in requests:
            held.append(request.held_block_ids)
            assert len(request.block_tables) in {0, len(self._windows)}, "not a block table for each KV group"
            for window, table in zip(self._windows, request.block_tables, strict=False):
                num_slid = num_slid_blocks(window, request.num_computed_tokens, self._block_size)
                assert table.num_slid <= num_slid, "a block within the window was given back"
                assert len(table.block_ids) == request.num_table_blocks, "block tables differ in length"
            room = request.num_table_blocks * self._block_size
            assert room >= request.num_computed_tokens, "computed beyond blocks"
            assert request.num_computed_tokens <= request.num_expected_tokens, "more computed than known"
        self.pool.check_integrity(held)
        self.offload.host.check_integrity()
        self.block_ledger.check_integrity(self.pool.ref_counts)
