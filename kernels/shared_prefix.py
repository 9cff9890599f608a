"""Groups of sequences that share leading blocks, so that attention reads those blocks once for the whole group."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.paged_batch import PagedBatch

MIN_SHARED_TOKENS = 64  # below this, merging two partial results costs more than the reads it saves


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences (indices into the batch) whose first `num_blocks` blocks are the same ones."""

    members: tuple[int, ...]
    num_blocks: int


def find_prefix_groups(batch: PagedBatch) -> tuple[PrefixGroup, ...]:
    """Return disjoint groups that save the most block reads.

    Only blocks wholly before a sequence's first query count, so a group's shared part needs no mask. A group of n
    sequences over b blocks saves (n - 1) * b reads; where sharing is nested (a template shared by all, a document
    shared by some), whichever level saves more wins.
    """
    tables = [list(s.block_ids[: s.num_context // batch.block_size]) for s in batch.sequences]
    members = [index for index, table in enumerate(tables) if table]
    groups, _ = _best_groups(tables, members, depth=0, min_blocks=-(-MIN_SHARED_TOKENS // batch.block_size))
    return tuple(groups)


def _best_groups(
    tables: Sequence[list[int]], members: Sequence[int], depth: int, min_blocks: int
) -> tuple[list[PrefixGroup], int]:
    """Return the best groups within `members`, which agree on their first `depth` blocks, and the reads they save."""
    by_block: defaultdict[int, list[int]] = defaultdict(list)
    for index in members:
        if len(tables[index]) > depth:
            by_block[tables[index][depth]].append(index)
    groups: list[PrefixGroup] = []
    saved = 0
    for children in by_block.values():
        if len(children) > 1:
            common = _common_length(tables, children, depth + 1)
            whole = (len(children) - 1) * common
            parts, parts_saved = _best_groups(tables, children, common, min_blocks)
            if common >= min_blocks and whole >= parts_saved:
                parts, parts_saved = [PrefixGroup(tuple(children), common)], whole
            groups += parts
            saved += parts_saved
    return groups, saved


def _common_length(tables: Sequence[list[int]], members: Sequence[int], known: int) -> int:
    """Return how many leading blocks all members share, given that the first `known` are."""
    # What the least and the greatest of them share, in the order of their blocks, all between them share.
    own = [tables[index] for index in members]
    least, greatest = min(own), max(own)
    length = min(len(least), len(greatest))
    return next((depth for depth in range(known, length) if least[depth] != greatest[depth]), length)
