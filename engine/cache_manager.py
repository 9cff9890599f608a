"""The KV cache manager: gives requests their blocks, finds prefix hits and keeps the accounts of blocks held."""

from collections.abc import Callable, Iterable, Sequence

from engine.block_hash import block_hash, root_hash
from engine.block_ledger import BlockLedger, nanoseconds
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.forking import BlockCopy, shared_prompt
from engine.offloading import Offload, Transfer
from engine.request import Request


class KVCacheManager:
    """Block tables over one pool. `clock` returns seconds; only differences are used."""

    def __init__(self, config: EngineConfig, model_name: str, clock: Callable[[], float]) -> None:
        self._transfers: list[Transfer] = []
        self.offload = Offload(config.num_host_blocks, config.block_size, clock, self._transfers)
        self.pool = BlockPool(config.num_blocks, self.offload.spill)
        self.block_ledger = BlockLedger(config.num_blocks, nanoseconds(clock()))
        self._block_size = config.block_size
        self._window = config.window
        self._most_blocks = config.most_blocks
        self._caching = config.enable_prefix_caching
        self._model_name = model_name
        self._clock = clock

    def admit(self, request: Request) -> bool:
        """Give a request without blocks its prefix hits, if all its known tokens fit beside what is held now.

        Sets `num_computed_tokens` to the tokens hit. The last known token is never a hit: its logits are needed. What a
        request of its group holds of the prompt is a hit too, the partly filled block at its end included.
        Returns False, with nothing changed, when there is no room.
        """
        hits, num_hit = self._match_prefix(request)
        shared = shared_prompt(request)
        if shared is not None and shared.num_tokens > num_hit:
            found = self._held_for(shared.holder, shared.num_tokens)
            hits, num_hit = (hits, num_hit) if found is None else (found, shared.num_tokens)
        num_slid = -(-num_hit // self._block_size) - len(hits)
        num_blocks = min(-(-request.num_tokens // self._block_size) - num_slid, self._most_blocks)
        num_copied = num_hit % self._block_size > 0  # a partly filled block is copied before it is written to
        num_free_hits = sum(block_id is None or self.pool.is_free(block_id) for block_id in hits)
        if max(0, num_blocks - len(hits)) + num_copied + num_free_hits > self.pool.num_free:
            return False
        self._reuse(request, hits, num_hit)
        return True

    def fork(self, holder: Request, request: Request) -> None:
        """Give a request without blocks those that hold its prompt in `holder`; it takes no block of its own yet."""
        num_tokens = min(request.num_prompt_tokens, request.num_tokens - 1)
        block_ids = self._held_for(holder, num_tokens)
        assert block_ids is not None, "a prompt just computed has not slid out"
        self._reuse(request, block_ids, num_tokens)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens` tokens, and put a copy in the place of the block that is written
        to next where others read that too; see `take_transfers`. Gives back what slid out of the window. Returns False,
        with nothing else changed, without room."""
        self._slide(request)
        num_own = len(request.block_ids)
        missing = -(-num_tokens // self._block_size) - num_own
        written = request.num_computed_tokens // self._block_size
        is_copied = written < num_own and not self.pool.is_writable(request.block_ids[written])
        if missing + is_copied <= 0:
            return True
        if missing + is_copied > self.pool.num_free:
            return False
        self._account(request)
        taken = self.pool.allocate(missing + is_copied)
        self._take(request, taken[: len(taken) - is_copied])
        if is_copied:
            self._replace(request, written, taken[-1])
        return True

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Extend the block table of a request that `grow` made ready for this step and whose blocks may be named since:
        none is copied now. It then holds `num_tokens` tokens. Returns False, with nothing changed, without room."""
        missing = -(-num_tokens // self._block_size) - len(request.block_ids)
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self._account(request)
            self._take(request, self.pool.allocate(missing))
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
        self._extend_hashes(request, num_full)
        for index in range(request.num_cached_blocks, num_full):
            self.pool.cache(request.block_ids[index], request.block_hashes[index])
        request.num_cached_blocks = max(request.num_cached_blocks, num_full)

    def release(self, request: Request) -> None:
        """Give all blocks back; their content stays reusable until it is overwritten."""
        self._account(request)
        held = request.held_block_ids
        self.block_ledger.give_back(request, held)
        self.pool.release(held)
        if request.group is not None:
            request.group.figures.give_back(held, self._clock())
        request.block_ids.clear()
        request.num_slid_blocks = 0
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

    def _num_slid(self, num_computed_tokens: int) -> int:
        """Return how many leading blocks no token behind the computed ones sees."""
        if self._window is None:
            return 0
        return max(0, num_computed_tokens - self._window + 1) // self._block_size

    def _slide(self, request: Request) -> None:
        """Give back the blocks that slid out of the window; their content stays reusable."""
        num_slid = self._num_slid(request.num_computed_tokens)
        gone = request.block_ids[request.num_slid_blocks : num_slid]
        if not gone:
            return
        self._account(request)
        self._let_go(request, gone)
        request.block_ids[request.num_slid_blocks : num_slid] = [0] * len(gone)
        request.num_slid_blocks = num_slid

    def _held_for(self, holder: Request, num_tokens: int) -> list[int] | None:
        """Return the holder's blocks that a token behind its first `num_tokens` sees; None where one has slid out."""
        first = self._num_slid(num_tokens)
        if first < holder.num_slid_blocks:
            return None
        return holder.block_ids[first : -(-num_tokens // self._block_size)]

    def _reuse(self, request: Request, hits: Sequence[int | None], num_tokens: int) -> None:
        """Let a request without blocks hold these, which have the KV of its first `num_tokens` tokens, but for what
        slid out of the window; None is a block that the host has."""
        self._account(request)
        self.pool.share(block_id for block_id in hits if block_id is not None)
        request.num_slid_blocks = -(-num_tokens // self._block_size) - len(hits)
        request.block_ids.extend([0] * request.num_slid_blocks)
        self._take(request, self._restored(request, hits))
        request.num_cached_blocks = num_tokens // self._block_size
        request.num_computed_tokens = num_tokens

    def _restored(self, request: Request, hits: Sequence[int | None]) -> list[int]:
        """Return the hits with those that the host has in blocks again, which have a reference and a name."""
        names = request.block_hashes[request.num_slid_blocks :]
        missing = [names[index] for index, block_id in enumerate(hits) if block_id is None]
        restored = self.offload.restore(missing, self.pool.allocate)
        for name, block_id in zip(missing, restored, strict=True):
            self.pool.cache(block_id, name)
        in_order = iter(restored)
        return [next(in_order) if block_id is None else block_id for block_id in hits]

    def _take(self, request: Request, block_ids: list[int]) -> None:
        """Put blocks that a request has a reference to at the end of its table."""
        self._hold(request, block_ids)
        request.block_ids.extend(block_ids)
        request.figures.kv_blocks_peak = max(request.figures.kv_blocks_peak, request.num_held_blocks)

    def _replace(self, request: Request, index: int, copy: int) -> None:
        """Put a block that is to become a copy, and has a reference, in the place of the one at `index`."""
        original = request.block_ids[index]
        self._hold(request, (copy,))
        request.block_ids[index] = copy
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

    def _match_prefix(self, request: Request) -> tuple[Sequence[int | None], int]:
        """Return the blocks to reuse, None for one that the host has, and the number of tokens hit. Of a window's,
        nothing before it need be there."""
        if not self._caching or request.lacks_prompt_logprobs:
            return [], 0
        num_full = (request.num_tokens - 1) // self._block_size
        if self._window is not None:
            return self._match_window(request, num_full)
        hits: list[int | None] = []
        for index in range(num_full):
            self._extend_hashes(request, index + 1)
            block_id = self.pool.find(request.block_hashes[index])
            if block_id is None and not self.offload.has(request.block_hashes[index]):
                break
            hits.append(block_id)
        return hits, len(hits) * self._block_size

    def _match_window(self, request: Request, num_full: int) -> tuple[Sequence[int | None], int]:
        """Return the last run of cached blocks that is as long as what the token behind it sees of them."""
        self._extend_hashes(request, num_full)
        stop = num_full
        hits: list[int | None] = []  # blocks before `stop`, the last first
        for index in range(num_full - 1, -1, -1):
            if len(hits) == max(1, stop - self._num_slid(stop * self._block_size)):
                break  # at least one: tokens behind no block at all were perhaps never computed
            block_id = self.pool.find(request.block_hashes[index])
            if block_id is None and not self.offload.has(request.block_hashes[index]):
                stop, hits = index, []
            else:
                hits.append(block_id)
        return hits[::-1], stop * self._block_size

    def _extend_hashes(self, request: Request, num_full: int) -> None:
        """Hash known blocks up to `num_full`, each once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_full):
            parent = hashes[-1] if hashes else root_hash(self._model_name, request.tenant)
            hashes.append(block_hash(parent, request.token_ids[index * size : (index + 1) * size]))

    def _account(self, request: Request) -> None:
        """Add the blocks held since the last change to the request's block-seconds, and all blocks' times."""
        now, figures = self._clock(), request.figures
        figures.kv_block_seconds += request.num_held_blocks * (now - figures.blocks_changed_at)
        figures.blocks_changed_at = now
        self.advance(nanoseconds(now))

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless the pool agrees with the requests' block tables and these with their tokens."""
        tables = []
        for request in requests:
            tables.append(request.held_block_ids)
            num_slid = self._num_slid(request.num_computed_tokens)
            assert request.num_slid_blocks <= num_slid, "a block within the window was given back"
            assert len(request.block_ids) * self._block_size >= request.num_computed_tokens, "computed beyond blocks"
            assert request.num_computed_tokens <= request.num_tokens, "more computed than known"
        self.pool.check_integrity(tables)
        self.offload.host.check_integrity()
        self.block_ledger.check_integrity(self.pool.ref_counts)
