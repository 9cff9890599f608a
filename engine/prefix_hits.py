"""Prefix hits: which cached blocks a request can begin with. Torch-free."""

from collections.abc import Sequence

from engine.block_hash import block_hash, root_hash
from engine.block_pool import BlockPool
from engine.config import EngineConfig
from engine.kv_groups import num_slid_blocks
from engine.offloading import Offload
from engine.request import Request

Hits = Sequence[Sequence[int | None]]  # blocks by KV group, the last ones of a prefix; None is one that the host has


class PrefixHits:
    """Finds blocks by the hash of all tokens up to their end, in each KV group for itself.

    A prefix is a hit where each group has what the token behind it sees: all of its blocks, or those of a window.
    """

    def __init__(self, config: EngineConfig, model_name: str, pool: BlockPool, offload: Offload) -> None:
        self._block_size = config.block_size
        self._windows = config.windows
        self._suffixes = [bytes([group]) if group else b"" for group in range(len(config.windows))]
        self._model_name = model_name
        self._pool = pool
        self._offload = offload

    def find(self, request: Request) -> tuple[Hits, int]:
        """Return the blocks to reuse and the number of tokens hit. The last known token is never hit."""
        stop = (request.num_tokens - 1) // self._block_size
        for group, window in enumerate(self._windows):
            if window is None:
                stop = self._run_from_the_start(request, group, stop)
        stop = self._run_of_windows(request, stop)
        firsts = [self.first_seen(window, stop) for window in self._windows]
        hits = [
            [self._pool.find(self.name(request, index, group)) for index in range(first, stop)]
            for group, first in enumerate(firsts)
        ]
        return hits, stop * self._block_size

    def name(self, request: Request, index: int, group: int) -> bytes:
        """Return what a full block of a request, whose hash is known, is called in a group."""
        return request.block_hashes[index] + self._suffixes[group]

    def names(self, request: Request, index: int) -> list[bytes]:
        """Return what a full block of a request, whose hash is known, is called in each group."""
        return [request.block_hashes[index] + suffix for suffix in self._suffixes]

    def extend_hashes(self, request: Request, num_full: int) -> None:
        """Hash known blocks up to `num_full`, each once in a request's life."""
        hashes, size = request.block_hashes, self._block_size
        for index in range(len(hashes), num_full):
            parent = hashes[-1] if hashes else root_hash(self._model_name, request.tenant)
            hashes.append(block_hash(parent, request.token_ids[index * size : (index + 1) * size]))

    def first_seen(self, window: int | None, stop: int) -> int:
        """Return the first block of those before `stop` that a hit which ends there needs. At least one where there is
        one: tokens behind no block at all were perhaps never computed."""
        return min(num_slid_blocks(window, stop * self._block_size, self._block_size), max(0, stop - 1))

    def _run_from_the_start(self, request: Request, group: int, stop: int) -> int:
        """Return how many blocks there are from the start without a gap, at most `stop`."""
        for index in range(stop):
            self.extend_hashes(request, index + 1)
            if not self._has(self.name(request, index, group)):
                return index
        return stop

    def _run_of_windows(self, request: Request, stop: int) -> int:
        """Return the last place, at most `stop`, before which each sliding group has a window's blocks.

        A block that is missing is needed wherever the end is moved to behind it: each is looked for once.
        """
        runs = {group: stop for group, window in enumerate(self._windows) if window is not None}  # where one begins
        if not runs:
            return stop
        self.extend_hashes(request, stop)
        is_settled = False
        while not is_settled:
            is_settled = True
            for group, begin in runs.items():
                first = self.first_seen(self._windows[group], stop)
                begin = min(begin, stop)
                while begin > first and self._has(self.name(request, begin - 1, group)):
                    begin -= 1
                runs[group] = begin
                if begin > first:
                    stop, is_settled = begin - 1, False
        return stop

    def _has(self, name: bytes) -> bool:
        return self._pool.find(name) is not None or self._offload.has(name)
