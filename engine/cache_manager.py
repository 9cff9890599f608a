"""The KV cache manager: gives requests their blocks, finds prefix hits and keeps the accounts of blocks held."""

from collections.abc import Callable, Iterable

from engine.block_hash import block_hash, root_hash
from engine.block_ledger import BlockLedger, nanoseconds
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.forking import BlockCopy, shared_prompt
from engine.request import Request


class KVCacheManager:
    """Block tables over one pool. `clock` returns seconds; only differences are used."""

    def __init__(self, config: EngineConfig, model_name: str, clock: Callable[[], float]) -> None:
        self.pool = BlockPool(config.num_blocks)
        self.block_ledger = BlockLedger(config.num_blocks, nanoseconds(clock()))
        self._block_size = config.block_size
        self._caching = config.enable_prefix_caching
        self._model_name = model_name
        self._clock = clock
        self._copies: list[BlockCopy] = []

    def admit(self, request: Request) -> bool:
        """Give a request without blocks its prefix hits, if all its known tokens fit beside what is held now.

        Sets `num_computed_tokens` to the tokens hit. The last known token is never a hit: its logits are needed. What a
        request of its group holds of the prompt is a hit too, the partly filled block at its end included.
        Returns False, with nothing changed, when there is no room.
        """
        hits = self._match_prefix(request)
        num_hit = len(hits) * self._block_size
        shared = shared_prompt(request)
        if shared is not None and shared.num_tokens > num_hit:
            hits, num_hit = self._leading_blocks(shared.holder, shared.num_tokens), shared.num_tokens
        num_blocks = -(-request.num_tokens // self._block_size)
        num_copied = num_hit % self._block_size > 0  # a partly filled block is copied before it is written to
        num_taken = num_blocks - len(hits) + num_copied + sum(self.pool.is_free(block_id) for block_id in hits)
        if num_taken > self.pool.num_free:
            return False
        self._reuse(request, hits, num_hit)
        return True

    def fork(self, holder: Request, request: Request) -> None:
        """Give a request without blocks those that hold its prompt in `holder`; it takes no block of its own yet."""
        num_tokens = min(request.num_prompt_tokens, request.num_tokens - 1)
        self._reuse(request, self._leading_blocks(holder, num_tokens), num_tokens)

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the block table to hold `num_tokens` tokens, and put a copy in the place of the block that is written
        to next where others read that too; see `take_copies`. Returns False, with nothing changed, without room."""
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

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Return the copies that are to be made before the next step's first write; they are its plan's from now on."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

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
        self.block_ledger.give_back(request, request.block_ids)
        self.pool.release(request.block_ids)
        if request.group is not None:
            request.group.figures.give_back(request.block_ids, self._clock())
        request.block_ids.clear()
        request.num_cached_blocks = 0
        request.num_computed_tokens = 0

    def forget_all(self) -> None:
        """Let no block's content be reused."""
        self.advance(nanoseconds(self._clock()))
        self.pool.forget_all()

    def settle(self, request: Request) -> None:
        """Bring a request's share of block time up to the last `advance`; it goes on holding its blocks."""
        self.block_ledger.settle(request, request.block_ids)

    def advance(self, now_ns: int) -> None:
        """Bring the account of all blocks up to now; before anything changes who holds what, or what is cached."""
        self.block_ledger.advance(now_ns, self.pool.num_reusable)

    def _leading_blocks(self, holder: Request, num_tokens: int) -> list[int]:
        return holder.block_ids[: -(-num_tokens // self._block_size)]

    def _reuse(self, request: Request, block_ids: list[int], num_tokens: int) -> None:
        """Let a request without blocks hold these, which have the KV of its first `num_tokens` tokens."""
        self._account(request)
        self.pool.share(block_ids)
        self._take(request, block_ids)
        request.num_cached_blocks = num_tokens // self._block_size
        request.num_computed_tokens = num_tokens

    def _take(self, request: Request, block_ids: list[int]) -> None:
        """Put blocks that a request has a reference to at the end of its table."""
        self.block_ledger.take(request, block_ids)
        request.block_ids.extend(block_ids)
        request.figures.kv_blocks_peak = max(request.figures.kv_blocks_peak, len(request.block_ids))
        if request.group is not None:
            request.group.figures.take(block_ids, self._clock())

    def _replace(self, request: Request, index: int, copy: int) -> None:
        """Put a block that is to become a copy, and has a reference, in the place of the one at `index`."""
        original = request.block_ids[index]
        self.block_ledger.let_go(request, original)
        self.block_ledger.take(request, (copy,))
        request.block_ids[index] = copy
        self.pool.release((original,))
        if request.group is not None:
            request.group.figures.take((copy,), self._clock())
            request.group.figures.give_back((original,), self._clock())
        self._copies.append(BlockCopy(original, copy))

    def _match_prefix(self, request: Request) -> list[int]:
        if not self._caching:
            return []
        num_full = (request.num_tokens - 1) // self._block_size
        hits: list[int] = []
        for index in range(num_full):
            self._extend_hashes(request, index + 1)
            block_id = self.pool.find(request.block_hashes[index])
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def _extend_hashes(self, request: Request, num_full: int) -> None:
        """Hash known blocks up to `num_full`, each once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_full):
            parent = hashes[-1] if hashes else root_hash(self._model_name, request.tenant)
            hashes.append(block_hash(parent, request.token_ids[index * size : (index + 1) * size]))

    def _account(self, request: Request) -> None:
        """Add the blocks held since the last change to the request's block-seconds, and all blocks' times."""
        now, figures = self._clock(), request.figures
        figures.kv_block_seconds += len(request.block_ids) * (now - figures.blocks_changed_at)
        figures.blocks_changed_at = now
        self.advance(nanoseconds(now))

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless the pool agrees with the requests' block tables and these with their tokens."""
        tables = []
        for request in requests:
            tables.append(request.block_ids)
            assert len(request.block_ids) * self._block_size >= request.num_computed_tokens, "computed beyond blocks"
            assert request.num_computed_tokens <= request.num_tokens, "more computed than known"
        self.pool.check_integrity(tables)
        self.block_ledger.check_integrity(self.pool.ref_counts)
