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


@dataclass(slots=True)
class _Tasks:
    """The tasks so far: runs of keys, and the queries that look at them."""

    block_size: int
    firsts: list[int] = field(default_factory=list)  # by task: its keys are [first, stop)
    stops: list[int] = field(default_factory=list)
    num_members: list[int] = field(default_factory=list)  # by task
    num_blocks: list[int] = field(default_factory=list)  # by task
    blocks: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)  # packed tokens

    def add(self, tokens: Sequence[int], block_ids: Sequence[int], first: int, stop: int) -> None:
        """Add a task over keys [first, stop) of a sequence's blocks."""
        blocks = block_ids[first // self.block_size : -(-stop // self.block_size)]
        self.firsts.append(first)
        self.stops.append(stop)
        self.num_members.append(len(tokens))
        self.num_blocks.append(len(blocks))
        self.blocks += blocks
        self.members += tokens


def plan_step(batch: PagedBatch, queries_per_kv_head: int, window: int | None, *, is_invariant: bool) -> StepPlan:
    """Plan all queries of a step. A window of w leaves w keys to each, its own included. Blocks that several sequences
    begin with are read once for all of them. If the plan `is_invariant`, where a query's keys are cut depends on their
    positions alone, and so its bits do not depend on what else is in the step."""
    split = -(-(INVARIANT_SPLIT_KEYS if is_invariant else SPLIT_KEYS) // batch.block_size) * batch.block_size
    most = MAX_ROWS // queries_per_kv_head
    tasks = _Tasks(batch.block_size)
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]  # by sequence: its first packed token
    behind = [0] * len(batch.sequences)  # by sequence: its first key that no shared run has
    for members, block_ids in _shared_runs(batch, window):
        tokens = [token for index in members for token in range(starts[index], starts[index + 1])]
        stop = len(block_ids) * batch.block_size
        if is_invariant:
            stop = stop // split * split
        for token in range(0, len(tokens), most):
            for first in range(0, stop, split):
                tasks.add(tokens[token : token + most], block_ids, first, min(stop, first + split))
        for index in members:
            behind[index] = stop
    for sequence, start, begin in zip(batch.sequences, starts, behind, strict=False):
        cut = None if sequence.num_new > FEW_QUERIES and not is_invariant else split
        for query in range(0, sequence.num_new, most):
            _add_own(tasks, sequence, start, range(query, min(sequence.num_new, query + most)), begin, window, cut)
    return _packed(tasks, batch, window)


def _add_own(
    tasks: _Tasks, sequence: PagedSequence, start: int, queries: range, begin: int, window: int | None, cut: int | None
) -> None:
    """Add what queries of a sequence see of its keys from `begin` on, cut at multiples of `cut`, if at all. `start` is
    the sequence's first packed token."""
    first_stop = sequence.num_context + 1  # behind the last key that query 0 sees
    begin = begin if window is None else max(begin, first_stop + queries.start - window)
    stop = sequence.num_context + queries.stop
    if cut is None:
        tasks.add(range(start + queries.start, start + queries.stop), sequence.block_ids, begin, stop)
        return
    for first in range(begin // cut * cut, stop, cut):
        low, high = max(begin, first), min(stop, first + cut)
        # Each query sees one key more than the one before it, and from a window on one less.
        seeing_from = max(queries.start, low + 1 - first_stop)
        seeing_to = queries.stop if window is None else min(queries.stop, high + window - first_stop)
        tasks.add(range(start + seeing_from, start + seeing_to), sequence.block_ids, low, high)


def _shared_runs(batch: PagedBatch, window: int | None) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield sequences that begin with the same blocks, and these: of those whose window hides nothing."""
    whole = [i for i, sequence in enumerate(batch.sequences) if window is None or sequence.num_tokens <= window]
    for group in find_prefix_groups(PagedBatch(tuple(batch.sequences[i] for i in whole), batch.block_size)):
        members = [whole[index] for index in group.members]
        yield members, batch.sequences[members[0]].block_ids[: group.num_blocks]


def _packed(tasks: _Tasks, batch: PagedBatch, window: int | None) -> StepPlan:
    positions = np.array([p for s in batch.sequences for p in range(s.num_context, s.num_tokens)], np.int64)
    tokens = np.array(tasks.members, np.int64)
    run_starts = np.array(tasks.firsts, np.int64) // tasks.block_size * tasks.block_size
    by_task = np.array((tasks.firsts, tasks.stops, run_starts), np.int64)
    firsts, stops, starts = np.repeat(by_task, tasks.num_members, axis=1)
    seen_to = positions[tokens] + 1
    if window is not None:
        firsts = np.maximum(firsts, seen_to - window)
    by_name: dict[str, Sequence[int] | NDArray[np.int64]] = {
        "positions": positions,
        "token_parts": np.concatenate(([0], np.bincount(tokens, minlength=len(positions)).cumsum())),
        "parts": np.lexsort((starts, tokens)),
        "task_members": [0, *accumulate(tasks.num_members)],
        "members": tokens,
        "first_keys": firsts - starts,
        "stop_keys": np.minimum(seen_to, stops) - starts,
        "task_blocks": [0, *accumulate(tasks.num_blocks)],
        "blocks": tasks.blocks,
        "run_starts": run_starts,
    }
    arrays = [np.asarray(by_name[name], np.int64) for name in _TABLES]
    joined = np.concatenate(arrays)
    offsets = [0, *accumulate(len(array) for array in arrays)][:-1]
    pointers = (joined.ctypes.data + offset * joined.itemsize for offset in offsets)
    counts = (len(positions), len(tasks.num_members), len(tokens), tasks.block_size)
    return StepPlan(PlanStruct(*counts, *pointers), joined, len(positions), len(tokens))
