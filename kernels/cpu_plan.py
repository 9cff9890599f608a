"""How one step's attention is split on the CPU: prefill chunks one by one, decodes together, shared prefixes once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.shared_prefix import PrefixGroup, find_prefix_groups

QUERY_TILE = 128  # queries of a chunk that attend at a time: keys behind a tile's last query are not looked at
SHORT_BLOCKS = 16  # runs of blocks up to here are padded to one length, whatever theirs


@dataclass(frozen=True, slots=True)
class Tile:
    """Some of a chunk's queries, and the keys that the last of them sees or the first of them still sees."""

    start: int  # packed query tokens [start, stop)
    stop: int
    first_key: int  # keys [first_key, stop_key) of those that the chunk gathers
    stop_key: int
    mask: Tensor  # [(stop - start) * queries_per_kv_head, num_columns], 0 or -inf, over the last columns of the scores


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A prefill chunk of one sequence over its blocks."""

    block_ids: Tensor  # [num_blocks]
    tiles: tuple[Tile, ...]


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
    own_distances: Tensor  # [num_rows, 1] position of the first own column minus the query's
    shared_distances: Tensor  # [num_rows, 1] the same of the first shared column


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The parts of one step; built once, used by every layer."""

    chunks: tuple[ChunkPart, ...]
    decodes: tuple[DecodePart, ...]


@dataclass(frozen=True, slots=True)
class _Decode:
    row: int
    first_key: int  # behind the shared prefix, or the first that a window leaves
    sequence: PagedSequence
    group: PrefixGroup | None

    def own_run(self, block_size: int) -> "_Run":
        first_block = self.first_key // block_size
        stop_block = -(-self.sequence.num_tokens // block_size)
        skipped = first_block * block_size
        return _Run(
            self.sequence.block_ids[first_block:stop_block],
            self.first_key - skipped,
            self.sequence.num_tokens - skipped,
        )


@dataclass(frozen=True, slots=True)
class _Run:
    block_ids: Sequence[int]
    first_key: int  # keys [first_key, stop_key) of the blocks' are seen
    stop_key: int


def plan_attention(
    batch: PagedBatch,
    queries_per_kv_head: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> CpuPlan:
    """Split a step into parts. `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's; `window` is
    that of `ScoreRules`."""
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]
    masks = _TileMasks(queries_per_kv_head, dtype, window)
    chunks = []
    decodes: list[tuple[int, PagedSequence]] = []
    for start, sequence in zip(starts, batch.sequences, strict=False):
        if sequence.num_new == 1:
            decodes.append((start, sequence))
        else:
            chunks.append(_chunk_part(start, sequence, batch.block_size, masks))
    return CpuPlan(tuple(chunks), _decode_parts(decodes, batch.block_size, dtype, window))


class _TileMasks:
    """Masks of tiles: causal, and of a window where it hides something. Each causal one is made once a size."""

    def __init__(self, queries_per_kv_head: int, dtype: torch.dtype, window: int | None) -> None:
        self.window = window
        self._per_head = queries_per_kv_head
        self._dtype = dtype
        self._causal: dict[int, Tensor] = {}

    def causal(self, size: int) -> Tensor:
        """Return the mask of `size` queries over their own positions."""
        if size not in self._causal:
            self._causal[size] = self._mask(torch.arange(size)[:, None] - torch.arange(size)[None, :])
        return self._causal[size]

    def windowed(self, size: int, num_keys: int) -> Tensor:
        """Return the mask of `size` queries over the `num_keys` keys that end with their own positions."""
        return self._mask(torch.arange(num_keys - size, num_keys)[:, None] - torch.arange(num_keys)[None, :])

    def _mask(self, distances: Tensor) -> Tensor:
        hidden = distances < 0
        if self.window is not None:
            hidden |= distances >= self.window
        mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
        return mask.repeat_interleave(self._per_head, dim=0)


def _chunk_part(start: int, sequence: PagedSequence, size: int, masks: _TileMasks) -> ChunkPart:
    """Return the part of a sequence whose first query is packed at `start`."""
    skipped = _first_visible(sequence.num_context, masks.window) // size * size  # keys of blocks that nobody sees
    tiles = []
    for first in range(sequence.num_context, sequence.num_tokens, QUERY_TILE):
        stop = min(first + QUERY_TILE, sequence.num_tokens)
        first_key = _first_visible(first, masks.window)
        is_windowed = _first_visible(stop - 1, masks.window) > 0
        mask = masks.windowed(stop - first, stop - first_key) if is_windowed else masks.causal(stop - first)
        offset = start - sequence.num_context
        tiles.append(Tile(first + offset, stop + offset, first_key - skipped, stop - skipped, mask))
    block_ids = sequence.block_ids[skipped // size : -(-sequence.num_tokens // size)]
    return ChunkPart(torch.tensor(block_ids), tuple(tiles))


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _decode_parts(
    sequences: Sequence[tuple[int, PagedSequence]], size: int, dtype: torch.dtype, window: int | None
) -> tuple[DecodePart, ...]:
    whole: list[_Decode] = []
    cut: list[_Decode] = []
    for row, sequence in sequences:
        first_key = _first_visible(sequence.num_context, window)
        (cut if first_key else whole).append(_Decode(row, first_key, sequence, None))
    decodes = cut + _grouped(whole, size)
    parts: list[list[_Decode]] = []
    lengths = {decode.row: len(decode.own_run(size).block_ids) for decode in decodes}
    for decode in sorted(decodes, key=lambda one: lengths[one.row], reverse=True):
        if not parts or not _fits(lengths[decode.row], lengths[parts[-1][0].row]):
            parts.append([])
        parts[-1].append(decode)
    return tuple(_decode_part(sorted(part, key=lambda one: one.row), size, dtype) for part in parts)


def _grouped(decodes: Sequence[_Decode], size: int) -> list[_Decode]:
    """Find the decodes that share a prefix. A window that hides nothing is no hindrance."""
    batch = PagedBatch(tuple(decode.sequence for decode in decodes), size)
    groups = {index: group for group in find_prefix_groups(batch) for index in group.members}
    return [
        replace(decode, first_key=groups[index].num_blocks * size, group=groups[index]) if index in groups else decode
        for index, decode in enumerate(decodes)
    ]


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
    own_runs = [decode.own_run(size) for decode in decodes]
    positions = torch.tensor([decode.sequence.num_context for decode in decodes])
    return DecodePart(
        rows=torch.tensor([decode.row for decode in decodes]),
        own=_runs(own_runs, size, dtype),
        shared=shared,
        num_shared_keys=num_shared_keys,
        has_gaps=sum(map(len, members.values())) < len(decodes)
        or any(part.runs.num_keys < num_shared_keys for part in shared),
        own_distances=1 - torch.tensor([run.stop_key for run in own_runs])[:, None],
        shared_distances=-positions[:, None],
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
        runs=_runs([_Run(blocks_of[g][: g.num_blocks], 0, g.num_blocks * size) for g in groups], size, dtype),
        members=torch.tensor(padded).flatten(),
        kept=None if real.all() else real.nonzero().flatten(),
    )


def _runs(runs: Sequence[_Run], size: int, dtype: torch.dtype) -> BlockRuns:
    """Pad runs to the longest."""
    num_blocks = max(len(run.block_ids) for run in runs)
    keys = torch.arange(num_blocks * size)[None, :]
    first_keys, stop_keys = torch.tensor([(run.first_key, run.stop_key) for run in runs]).unsqueeze(-1).unbind(1)
    hidden = (keys < first_keys) | (keys >= stop_keys)
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None]
    padded = [[*run.block_ids, *[run.block_ids[-1]] * (num_blocks - len(run.block_ids))] for run in runs]
    return BlockRuns(torch.tensor(padded).flatten(), len(runs), num_blocks * size, mask if hidden.any() else None)
