"""What one step's queries look at, in the form that the C kernels read: see `attention.h`."""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.shared_prefix import find_prefix_groups

MAX_ROWS = 128  # query rows, of all heads of a KV head, that a task may have
MAX_HEAD_DIM = 256
DIM_MULTIPLE = 32
FEW_QUERIES = 8  # of a sequence: more are a chunk, which is work for all threads as it is
SPLIT_KEYS = 1024  # the keys of a task of few queries at most, so that one long sequence has work for all threads
INVARIANT_SPLIT_KEYS = 256  # where the cuts must not depend on what is shared: shared runs are whole splits then
_COUNTS = ("num_tokens", "num_tasks", "num_members", "block_size")
_TABLES = (
    "positions",
    "token_parts",
    "parts",
    "task_members",
    "members",
    "first_keys",
    "stop_keys",
    "task_blocks",
    "blocks",
    "run_starts",
)


class PlanStruct(ctypes.Structure):
    """`Plan` of attention.h."""

    _fields_ = [*((name, c_int64) for name in _COUNTS), *((name, c_void_p) for name in _TABLES)]


def is_served(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether the kernels have room for such heads."""
    return head_dim % DIM_MULTIPLE == 0 and head_dim <= MAX_HEAD_DIM and num_heads // num_kv_heads <= MAX_ROWS


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step's queries. Built once, used by every layer with the same window and queries per KV head."""

    struct: PlanStruct
    tables: NDArray[np.int64]  # what the struct points into
    num_tokens: int
    num_members: int  # queries, counted once for each task that has them


@dataclass(frozen=True, slots=True)
class _Query:
    """A query token, and the positions that it sees."""

    token: int
    first_key: int  # keys [first_key, stop_key)
    stop_key: int


@dataclass(slots=True)
class _Tables:
    """The tasks so far."""

    block_size: int
    split: int  # keys of a task at most, whole blocks
    num_members: list[int] = field(default_factory=list)  # by task
    num_blocks: list[int] = field(default_factory=list)  # by task
    run_starts: list[int] = field(default_factory=list)  # by task
    blocks: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    first_keys: list[int] = field(default_factory=list)
    stop_keys: list[int] = field(default_factory=list)

    def add(
        self, queries: Sequence[_Query], block_ids: Sequence[int], first_key: int, stop_key: int, *, is_cut: bool = True
    ) -> None:
        """Add tasks over keys [first_key, stop_key) of a sequence's blocks, cut at multiples of `split`, or not."""
        split = self.split if is_cut else stop_key
        for cut in range(first_key // split * split, stop_key, split):
            first, stop = max(first_key, cut), min(stop_key, cut + split)
            first_block = first // self.block_size
            start = first_block * self.block_size
            looking = [query for query in queries if query.first_key < stop and query.stop_key > first]
            blocks = block_ids[first_block : -(-stop // self.block_size)]
            self.num_members.append(len(looking))
            self.num_blocks.append(len(blocks))
            self.run_starts.append(start)
            self.blocks += blocks
            self.members += [query.token for query in looking]
            self.first_keys += [max(query.first_key, first) - start for query in looking]
            self.stop_keys += [min(query.stop_key, stop) - start for query in looking]


def plan_step(batch: PagedBatch, queries_per_kv_head: int, window: int | None, *, is_invariant: bool) -> StepPlan:
    """Plan all queries of a step. A window of w leaves w keys to each, its own included. Blocks that several sequences
    begin with are read once for all of them. If the plan `is_invariant`, where a query's keys are cut depends on their
    positions alone, and so its bits do not depend on what else is in the step."""
    split = -(-(INVARIANT_SPLIT_KEYS if is_invariant else SPLIT_KEYS) // batch.block_size) * batch.block_size
    tables = _Tables(batch.block_size, split)
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]
    queries = [_queries(start, s, window) for start, s in zip(starts, batch.sequences, strict=False)]
    most = MAX_ROWS // queries_per_kv_head
    behind = [0] * len(queries)  # by sequence: its first key that no shared run has
    for members, block_ids in _shared_runs(batch, window):
        looking = [query for index in members for query in queries[index]]
        stop = len(block_ids) * batch.block_size
        if is_invariant:
            stop = stop // split * split
        for first in range(0, len(looking), most):
            tables.add(looking[first : first + most], block_ids, 0, stop)
        for index in members:
            behind[index] = stop
    for own, sequence, start in zip(queries, batch.sequences, behind, strict=True):
        whole = len(own) > FEW_QUERIES and not is_invariant
        for first in range(0, len(own), most):
            looking = own[first : first + most]
            begin, stop = max(start, looking[0].first_key), looking[-1].stop_key
            tables.add(looking, sequence.block_ids, begin, stop, is_cut=not whole)
    return _packed(tables, [query.stop_key - 1 for own in queries for query in own])


def _queries(start: int, sequence: PagedSequence, window: int | None) -> list[_Query]:
    stops = range(sequence.num_context + 1, sequence.num_tokens + 1)
    return [
        _Query(start + index, 0 if window is None else max(0, stop - window), stop) for index, stop in enumerate(stops)
    ]


def _shared_runs(batch: PagedBatch, window: int | None) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield sequences that begin with the same blocks, and these: of those whose window hides nothing."""
    whole = [i for i, sequence in enumerate(batch.sequences) if window is None or sequence.num_tokens <= window]
    for group in find_prefix_groups(PagedBatch(tuple(batch.sequences[i] for i in whole), batch.block_size)):
        members = [whole[index] for index in group.members]
        yield members, batch.sequences[members[0]].block_ids[: group.num_blocks]


def _packed(tables: _Tables, positions: Sequence[int]) -> StepPlan:
    tokens = np.array(tables.members, np.int64)
    starts = np.repeat(np.array(tables.run_starts, np.int64), tables.num_members)
    by_name: dict[str, Sequence[int] | NDArray[np.int64]] = {
        "positions": positions,
        "token_parts": np.concatenate(([0], np.bincount(tokens, minlength=len(positions)).cumsum())),
        "parts": np.lexsort((starts, tokens)),
        "task_members": [0, *accumulate(tables.num_members)],
        "members": tokens,
        "first_keys": tables.first_keys,
        "stop_keys": tables.stop_keys,
        "task_blocks": [0, *accumulate(tables.num_blocks)],
        "blocks": tables.blocks,
        "run_starts": tables.run_starts,
    }
    arrays = [np.asarray(by_name[name], np.int64) for name in _TABLES]
    joined = np.concatenate(arrays)
    offsets = [0, *accumulate(len(array) for array in arrays)][:-1]
    pointers = (joined.ctypes.data + offset * joined.itemsize for offset in offsets)
    counts = (len(positions), len(tables.num_members), len(tokens), tables.block_size)
    return StepPlan(PlanStruct(*counts, *pointers), joined, len(positions), len(tokens))
