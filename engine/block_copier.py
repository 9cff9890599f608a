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


class BlockCopier:
    """Host memory for `num_slots` blocks of a cache."""

    def __init__(self, cache: KVCache, num_slots: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` returns seconds."""
        self._blocks = cache.block_bytes()  # each [num_blocks, ...], bytes
        self._slots = [_like(blocks, num_slots) for blocks in self._blocks]
        self._device = self._blocks[0].device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._clock = clock
        self._times: list[CopyTime] = []
        self._pending: list[tuple[Direction, int, torch.cuda.Event, torch.cuda.Event]] = []

    def spill(self, spills: Sequence[Spill]) -> None:
        """Copy blocks out, in order."""
        if self._stream is None:
            with self._measured(Direction.OUT, len(spills)):
                for blocks, slots in zip(self._blocks, self._slots, strict=True):
                    for spill in spills:
                        slots[spill.slot].copy_(blocks[spill.block_id])
            return
        block_ids = torch.tensor([spill.block_id for spill in spills], device=self._device)
        staged = [blocks.index_select(0, block_ids) for blocks in self._blocks]
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), self._measured_on_device(Direction.OUT, len(spills)):
            for stage, slots in zip(staged, self._slots, strict=True):
                stage.record_stream(self._stream)
                for row, spill in zip(stage, spills, strict=True):
                    slots[spill.slot].copy_(row, non_blocking=True)

    def restore(self, restores: Sequence[Restore]) -> None:
        """Copy slots back. The blocks are distinct."""
        if self._stream is None:
            with self._measured(Direction.BACK, len(restores)):
                for blocks, slots in zip(self._blocks, self._slots, strict=True):
                    for restore in restores:
                        blocks[restore.block_id].copy_(slots[restore.slot])
            return
        block_ids = torch.tensor([restore.block_id for restore in restores], device=self._device)
        step_stream = torch.cuda.current_stream(self._device)
        staged = [blocks.new_empty(len(restores), *blocks.shape[1:]) for blocks in self._blocks]
        self._stream.wait_stream(step_stream)
        with torch.cuda.stream(self._stream), self._measured_on_device(Direction.BACK, len(restores)):
            for stage, slots in zip(staged, self._slots, strict=True):
                stage.record_stream(self._stream)
                for row, restore in zip(stage, restores, strict=True):
                    row.copy_(slots[restore.slot], non_blocking=True)
        step_stream.wait_stream(self._stream)
        for blocks, stage in zip(self._blocks, staged, strict=True):
            blocks.index_copy_(0, block_ids, stage)

    def take_times(self) -> list[CopyTime]:
        """Return what the copies took that ended since this was asked last."""
        while self._pending and self._pending[0][3].query():
            direction, num_blocks, began, ended = self._pending.pop(0)
            self._times.append(CopyTime(direction, num_blocks, began.elapsed_time(ended) / 1000))
        times, self._times = self._times, []
        return times

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


def _like(blocks: Tensor, num_slots: int) -> Tensor:
    """Return host memory for `num_slots` blocks, laid out as they are, so that runs of bytes are copied, not bytes."""
    order = sorted(range(1, blocks.ndim), key=blocks.stride, reverse=True)
    sizes = [num_slots, *(blocks.shape[dim] for dim in order)]
    memory = torch.empty(sizes, dtype=blocks.dtype, pin_memory=blocks.device.type == "cuda")
    return memory.permute(0, *(1 + order.index(dim) for dim in range(1, blocks.ndim)))
