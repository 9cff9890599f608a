"""How one step's attention is split on the CPU: prefill chunks one by one, decodes together, shared prefixes once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.shared_prefix import PrefixGroup, find_prefix_groups

QUERY_TILE = 128  # queries of a chunk that attend at a time: keys behind a tile's last query are not looked at
SHORT_BLOCKS = 16  # runs of blocks up to here are padded to one length, whatever theirs


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A prefill chunk of one sequence over all its blocks."""

    start: int  # packed query tokens [start, stop)
    stop: int
    block_ids: Tensor  # [num_blocks]
    num_context: int  # keys before the first query
    masks: tuple[Tensor, ...]  # a tile each: [tile * queries_per_kv_head, tile], 0 or -inf, over the tile's own keys


@dataclass(frozen=True, slots=True)
class BlockRuns:
    """Runs of blocks padded to one length."""

    block_ids: Tensor  # [num_runs * num_blocks], padded with a block of the run's own: no mask stops another's NaN
    num_runs: int
    num_keys: int  # a run, padding included
    mask: Tensor | None  # [num_runs, 1, num_keys], 0 or -inf; None where nothing is padded


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Prefixes of several groups of about the same size and length."""

    runs: BlockRuns  # one a group
    members: Tensor  # [num_groups * group_size] rows of the decodes, a group padded by repeating one
    kept: Tensor | None  # positions in `members` that are no padding; None keeps all

    @property
    def kept_members(self) -> Tensor:
        return self.members if self.kept is None else self.members[self.kept]


@dataclass(frozen=True, slots=True)
class DecodePart:
    """Sequences of one query each. Their scores stand in one matrix: shared keys first, then the sequence's own."""

    rows: Tensor  # [num_rows] packed query tokens
    own: BlockRuns  # one a row, behind the shared prefix
    shared: tuple[SharedPart, ...]
    num_shared_keys: int  # columns before the own keys
    has_gaps: bool  # whether some row has fewer shared keys than there are columns


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The parts of one step; built once, used by every layer."""

    chunks: tuple[ChunkPart, ...]
    decodes: tuple[DecodePart, ...]


@dataclass(frozen=True, slots=True)
class _Decode:
    row: int
    sequence: PagedSequence
    group: PrefixGroup | None

    def own_blocks(self, block_size: int) -> Sequence[int]:
        first = 0 if self.group is None else self.group.num_blocks
        return self.sequence.block_ids[first : -(-self.sequence.num_tokens // block_size)]

    def num_own_keys(self, block_size: int) -> int:
        return self.sequence.num_tokens - (0 if self.group is None else self.group.num_blocks * block_size)


def plan_attention(batch: PagedBatch, queries_per_kv_head: int, dtype: torch.dtype) -> CpuPlan:
    """Split a step into parts. `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's."""
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]
    masks = _TileMasks(queries_per_kv_head, dtype)
    chunks = []
    decodes: list[tuple[int, PagedSequence]] = []
    for index, sequence in enumerate(batch.sequences):
        if sequence.num_new == 1:
            decodes.append((starts[index], sequence))
            continue
        block_ids = torch.tensor(sequence.block_ids[: -(-sequence.num_tokens // batch.block_size)])
        tiles = masks.of(sequence.num_new)
        chunks.append(ChunkPart(starts[index], starts[index + 1], block_ids, sequence.num_context, tiles))
    return CpuPlan(tuple(chunks), _decode_parts(decodes, batch.block_size, dtype))


class _TileMasks:
    """Causal masks within a tile, each size made once."""

    def __init__(self, queries_per_kv_head: int, dtype: torch.dtype) -> None:
        self._per_head = queries_per_kv_head
        self._dtype = dtype
        self._by_size: dict[int, Tensor] = {}

    def of(self, num_queries: int) -> tuple[Tensor, ...]:
        """Return the masks of a chunk's tiles."""
        sizes = [QUERY_TILE] * (num_queries // QUERY_TILE) + [num_queries % QUERY_TILE]
        return tuple(self._mask(size) for size in sizes if size)

    def _mask(self, size: int) -> Tensor:
        if size not in self._by_size:
            queries = torch.arange(size).repeat_interleave(self._per_head)
            hidden = torch.arange(size)[None, :] > queries[:, None]
            self._by_size[size] = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
        return self._by_size[size]


def _decode_parts(
    sequences: Sequence[tuple[int, PagedSequence]], size: int, dtype: torch.dtype
) -> tuple[DecodePart, ...]:
    batch = PagedBatch(tuple(sequence for _, sequence in sequences), size)
    groups = {index: group for group in find_prefix_groups(batch) for index in group.members}
    decodes = [_Decode(row, sequence, groups.get(index)) for index, (row, sequence) in enumerate(sequences)]
    parts: list[list[_Decode]] = []
    for decode in sorted(decodes, key=lambda one: len(one.own_blocks(size)), reverse=True):
        if not parts or not _fits(len(decode.own_blocks(size)), len(parts[-1][0].own_blocks(size))):
            parts.append([])
        parts[-1].append(decode)
    return tuple(_decode_part(sorted(part, key=lambda one: one.row), size, dtype) for part in parts)


def _fits(num_blocks: int, most: int) -> bool:
    """Whether padding a run to the length of the longest costs less than another part would."""
    return 2 * num_blocks >= most or most <= SHORT_BLOCKS


def _decode_part(decodes: Sequence[_Decode], size: int, dtype: torch.dtype) -> DecodePart:
    members: dict[PrefixGroup, list[int]] = {}
    for position, decode in enumerate(decodes):
        if decode.group is not None:
            members.setdefault(decode.group, []).append(position)
    alike: list[list[PrefixGroup]] = []
    for group in sorted(members, key=lambda group: (group.num_blocks, len(members[group])), reverse=True):
        if not alike or not _is_alike(group, alike[-1][0], members):
            alike.append([])
        alike[-1].append(group)
    blocks_of = {group: decodes[positions[0]].sequence.block_ids for group, positions in members.items()}
    shared = tuple(_shared_part(groups, members, blocks_of, size, dtype) for groups in alike)
    num_shared_keys = max((part.runs.num_keys for part in shared), default=0)
    return DecodePart(
        rows=torch.tensor([decode.row for decode in decodes]),
        own=_runs([(d.own_blocks(size), d.num_own_keys(size)) for d in decodes], size, dtype),
        shared=shared,
        num_shared_keys=num_shared_keys,
        has_gaps=sum(map(len, members.values())) < len(decodes)
        or any(part.runs.num_keys < num_shared_keys for part in shared),
    )


def _is_alike(group: PrefixGroup, first: PrefixGroup, members: dict[PrefixGroup, list[int]]) -> bool:
    few, many = sorted((len(members[group]), len(members[first])))
    return _fits(group.num_blocks, first.num_blocks) and few * 4 >= many


def _shared_part(
    groups: Sequence[PrefixGroup],
    members: dict[PrefixGroup, list[int]],
    blocks_of: dict[PrefixGroup, Sequence[int]],
    size: int,
    dtype: torch.dtype,
) -> SharedPart:
    most = max(len(members[group]) for group in groups)
    padded = [members[group] + members[group][-1:] * (most - len(members[group])) for group in groups]
    real = torch.tensor([[place < len(members[group]) for place in range(most)] for group in groups]).flatten()
    return SharedPart(
        runs=_runs([(blocks_of[g][: g.num_blocks], g.num_blocks * size) for g in groups], size, dtype),
        members=torch.tensor(padded).flatten(),
        kept=None if real.all() else real.nonzero().flatten(),
    )


def _runs(runs: Sequence[tuple[Sequence[int], int]], size: int, dtype: torch.dtype) -> BlockRuns:
    """Pad runs of (block ids, number of keys)."""
    num_blocks = max(len(block_ids) for block_ids, _ in runs)
    num_keys = torch.tensor([keys for _, keys in runs])
    hidden = torch.arange(num_blocks * size)[None, :] >= num_keys[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]
    padded = [[*block_ids, *[block_ids[-1]] * (num_blocks - len(block_ids))] for block_ids, _ in runs]
    return BlockRuns(torch.tensor(padded).flatten(), len(runs), num_blocks * size, mask if hidden.any() else None)
