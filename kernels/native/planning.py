"""What one step's decodes look at, in the form that the C kernel reads: see `decode_attention.c`."""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.shared_prefix import find_prefix_groups

MAX_ROWS = 64  # query rows, of all heads of a KV head, that a task may have
MAX_HEAD_DIM = 256
DIM_MULTIPLE = 32
SPLIT_KEYS = 1024  # a task's keys at most, so that one long sequence has work for all threads
_COUNTS = ("num_rows", "num_tasks", "num_members", "num_heads", "num_kv_heads", "block_size")
_OF_A_LAYER = ("head_dim", "num_slots")  # set at each call
_TABLES = (
    "rows",
    "positions",
    "row_parts",
    "parts",
    "task_members",
    "members",
    "task_blocks",
    "blocks",
    "first_keys",
    "stop_keys",
    "run_starts",
)


class PlanStruct(ctypes.Structure):
    """`Plan` of decode_attention.c."""

    _fields_ = [*((name, c_int64) for name in (*_COUNTS, *_OF_A_LAYER)), *((name, c_void_p) for name in _TABLES)]


def is_served(num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether the kernel has room for such heads."""
    return head_dim % DIM_MULTIPLE == 0 and head_dim <= MAX_HEAD_DIM and num_heads // num_kv_heads <= MAX_ROWS


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """A step's decodes. Built once, used by every layer with the same window and numbers of heads."""

    struct: PlanStruct
    tables: Tensor  # int64; what the struct points into
    num_parts: int  # what tasks leave to be merged: one a row and query head of each task


@dataclass(frozen=True, slots=True)
class _Task:
    """A run of blocks and the rows that look at it."""

    members: Sequence[int]  # indices of rows
    block_ids: Sequence[int]
    first_key: int  # keys [first_key, stop_key) of the blocks' are seen
    stop_key: int
    start: int  # position of the blocks' first key


def plan_decodes(
    decodes: Sequence[tuple[int, PagedSequence]],
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    window: int | None,
) -> DecodePlan:
    """Plan sequences of one query each, given with their packed token. A window of w leaves w keys to each."""
    most = MAX_ROWS // (num_heads // num_kv_heads)
    tasks = list(_tasks([sequence for _, sequence in decodes], block_size, most, window))
    members = [member for task in tasks for member in task.members]
    parts_of: list[list[int]] = [[] for _ in decodes]
    starts = [task.start for task in tasks for _ in task.members]
    for part, row in enumerate(members):
        parts_of[row].append(part)
    tables = {
        "rows": [row for row, _ in decodes],
        "positions": [sequence.num_context for _, sequence in decodes],
        "row_parts": [0, *accumulate(map(len, parts_of))],
        "parts": [part for parts in parts_of for part in sorted(parts, key=starts.__getitem__)],
        "task_members": [0, *accumulate(len(task.members) for task in tasks)],
        "members": members,
        "task_blocks": [0, *accumulate(len(task.block_ids) for task in tasks)],
        "blocks": [block_id for task in tasks for block_id in task.block_ids],
        "first_keys": [task.first_key for task in tasks],
        "stop_keys": [task.stop_key for task in tasks],
        "run_starts": [task.start for task in tasks],
    }
    counts = (len(decodes), len(tasks), len(members), num_heads, num_kv_heads, block_size, 0, 0)
    joined = torch.tensor([number for name in _TABLES for number in tables[name]], dtype=torch.int64)
    offsets = [0, *accumulate(len(tables[name]) for name in _TABLES)][:-1]
    pointers = (joined.data_ptr() + offset * joined.itemsize for offset in offsets)
    return DecodePlan(PlanStruct(*counts, *pointers), joined, len(members) * num_heads)


def _tasks(
    sequences: Sequence[PagedSequence], block_size: int, max_members: int, window: int | None
) -> Iterator[_Task]:
    """Yield the runs that cover what each sequence sees: a prefix that some share once for all of them, as far as a
    task has room for them; the largest first, since they are handed to threads in this order."""
    firsts = [0 if window is None else max(0, sequence.num_tokens - window) for sequence in sequences]
    whole = [index for index, first in enumerate(firsts) if first == 0]
    groups = find_prefix_groups(PagedBatch(tuple(sequences[index] for index in whole), block_size))
    for group in groups:
        members = [whole[index] for index in group.members]
        block_ids = sequences[members[0]].block_ids[: group.num_blocks]
        shared = group.num_blocks * block_size
        for index in range(0, len(members), max_members):
            yield from _split(members[index : index + max_members], block_ids, 0, shared, block_size)
        for member in members:
            firsts[member] = shared
    for index, sequence in enumerate(sequences):
        yield from _split([index], sequence.block_ids, firsts[index], sequence.num_tokens, block_size)


def _split(
    members: Sequence[int], block_ids: Sequence[int], first_key: int, stop_key: int, block_size: int
) -> Iterator[_Task]:
    """Yield tasks over keys [first_key, stop_key) of the blocks, cut at multiples of SPLIT_KEYS."""
    step = -(-SPLIT_KEYS // block_size) * block_size
    for start in range(first_key // step * step, stop_key, step):
        first, stop = max(first_key, start), min(stop_key, start + step)
        first_block = first // block_size
        skipped = first_block * block_size
        yield _Task(members, block_ids[first_block : -(-stop // block_size)], first - skipped, stop - skipped, skipped)
