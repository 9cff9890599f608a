"""Copies between a cache's blocks and the host's memory, in the order asked for, each measured.

On a CPU they are made at once. On a GPU a spilled block is gathered on the step's stream, which may then overwrite it,
and goes to pinned memory on a stream of its own beside the step; a restored one comes on that stream, and the step
waits for it. All of the host's memory is touched on that one stream, so that its slots can be used again at once. Not
run on a GPU yet; see `kernels.triton_attention`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.host_tier import Restore, Spill
from engine.kv_cache import KVCache
from engine.offload_policy import CopyTime, Direction
from kernels.transfers import to_device


class BlockCopier:
    """Host memory for `num_slots` blocks of a cache."""

    def __init__(self, cache: KVCache, num_slots: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` returns seconds."""
        self._blocks = cache.block_bytes()
        self._device = self._blocks[0].device
        is_cuda = self._device.type == "cuda"
        self._sizes = [blocks[0].numel() for blocks in self._blocks]
        self._slots = torch.empty(num_slots, sum(self._sizes), dtype=torch.uint8, pin_memory=is_cuda and num_slots > 0)
        self._stream = torch.cuda.Stream(self._device) if is_cuda else None
        self._clock = clock
        self._times: list[CopyTime] = []
        self._pending: list[tuple[Direction, int, torch.cuda.Event, torch.cuda.Event]] = []

    def spill(self, spills: Sequence[Spill]) -> None:
        """Copy blocks out; of those for one slot, the last."""
        latest = {spill.slot: spill.block_id for spill in spills}
        if self._stream is None:
            with self._measured(Direction.OUT, len(latest)):
                self._slots.index_copy_(0, torch.tensor(list(latest)), self._gather(list(latest.values())))
            return
        staged = self._gather(list(latest.values()))
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), self._measured_on_device(Direction.OUT, len(latest)):
            staged.record_stream(self._stream)
            for slot, row in zip(latest, staged, strict=True):
                self._slots[slot].copy_(row, non_blocking=True)

    def restore(self, restores: Sequence[Restore]) -> None:
        """Copy slots back. The blocks are distinct."""
        block_ids, slots = [one.block_id for one in restores], [one.slot for one in restores]
        if self._stream is None:
            with self._measured(Direction.BACK, len(restores)):
                self._scatter(block_ids, self._slots.index_select(0, torch.tensor(slots)))
            return
        step_stream = torch.cuda.current_stream(self._device)
        staged = self._blocks[0].new_empty(len(restores), self._slots.shape[1])
        self._stream.wait_stream(step_stream)
        with torch.cuda.stream(self._stream), self._measured_on_device(Direction.BACK, len(restores)):
            staged.record_stream(self._stream)
            for slot, row in zip(slots, staged, strict=True):
                row.copy_(self._slots[slot], non_blocking=True)
        step_stream.wait_stream(self._stream)
        self._scatter(block_ids, staged)

    def take_times(self) -> list[CopyTime]:
        """Return what the copies took that ended since this was asked last."""
        while self._pending and self._pending[0][3].query():
            direction, num_blocks, began, ended = self._pending.pop(0)
            self._times.append(CopyTime(direction, num_blocks, began.elapsed_time(ended) / 1000))
        times, self._times = self._times, []
        return times

    def _gather(self, block_ids: list[int]) -> Tensor:
        """Return all that the blocks hold, [len(block_ids), bytes of a block]."""
        index = to_device(block_ids, torch.int64, self._device)
        return torch.cat([blocks.index_select(0, index).flatten(1) for blocks in self._blocks], dim=1)

    def _scatter(self, block_ids: list[int], contents: Tensor) -> None:
        index = to_device(block_ids, torch.int64, self._device)
        for blocks, part in zip(self._blocks, contents.split(self._sizes, dim=1), strict=True):
            blocks.index_copy_(0, index, part.reshape(-1, *blocks.shape[1:]))

    @contextmanager
    def _measured(self, direction: Direction, num_blocks: int) -> Iterator[None]:
        began = self._clock()
        yield
        self._times.append(CopyTime(direction, num_blocks, self._clock() - began))

    @contextmanager
    def _measured_on_device(self, direction: Direction, num_blocks: int) -> Iterator[None]:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        yield
        ended.record()
        self._pending.append((direction, num_blocks, began, ended))
