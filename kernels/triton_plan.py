"""How one step's attention is split on a GPU: tiles of query rows over ranges of keys, some of them parts to merge.

A sequence's keys are split where there would be too few programs to keep the GPU busy or one would outlast the rest
(Flash-Decoding, Dao et al. 2023). Decodes that share a prefix attend to it together, so that it is read once, and each
to its own rest apart. Either way a query has several partial results, which are merged by their log-sum-exp.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch
from kernels.shared_prefix import PrefixGroup, find_prefix_groups
from kernels.transfers import sent

Ints: TypeAlias = "array[int]"  # which Python 3.11 cannot evaluate

MIN_TILE = 16  # the least that a matrix instruction takes of rows, of keys and of a head's elements
CHUNK_TILE_ROWS = 64
KEY_ALIGNMENT = 64  # splits fall on multiples, so that only a range's last iteration is not full
NEVER = 2**62  # keys: more than there are
ALIGNMENT = 4  # int32 values: Triton compiles anew for a pointer that is no multiple of 16 bytes


@dataclass(frozen=True, slots=True)
class SplitRule:
    """When keys are split and prefixes shared. The figures are reckoned, not measured."""

    num_programs: int  # of one KV head, that keep the GPU busy
    min_part_keys: int = 512  # a part's partial result costs about as much as reading a few keys
    min_saved_keys: int = 4096  # reads that groups must save over the step: merging is one more launch
    batch_invariant: bool = False  # whether a query's result must not depend on what else is in the step

    @classmethod
    def invariant(cls) -> "SplitRule":
        """Return the rule by which a query's keys are never split, nor shared, and always taken in the same tiles."""
        return cls(num_programs=1, min_part_keys=NEVER, min_saved_keys=NEVER, batch_invariant=True)

    @classmethod
    def choose(cls, device: torch.device, num_kv_heads: int, *, batch_invariant: bool) -> "SplitRule":
        """Return a model's rule on a device."""
        return cls.invariant() if batch_invariant else cls.of(device, num_kv_heads)

    @classmethod
    def of(cls, device: torch.device, num_kv_heads: int) -> "SplitRule":
        """Return the rule for two programs a processor; a device other than a GPU counts as one processor."""
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
        return cls(num_programs=max(1, 2 * processors // num_kv_heads))


@dataclass(frozen=True, slots=True)
class Merges:
    """Which parts make up each query that has parts."""

    tokens: Tensor  # [num_merged], int32: packed tokens
    starts: Tensor  # [num_merged + 1], int32: a token's parts are parts[starts[i] : starts[i + 1]]
    parts: Tensor  # [num_parts], int32


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """The tiles of one step; built once, used by every layer of the same window.

    A query is a packed token over some of its keys. The first `num_tokens` queries are the tokens themselves; each one
    after them is a part, `num_tokens + part`, of whatever token. The query heads of one KV head are rows of one matrix,
    query by query (row = query * queries_per_kv_head + head), so each K and V is read once for all of them.
    """

    tiles: Tensor  # [num_tiles, 5], int32: sequence whose table is read, first row, number of rows, keys [first, stop)
    query_tokens: Tensor  # [num_queries], int32
    query_positions: Tensor  # [num_queries], int32
    block_tables: Tensor  # [num_sequences, max_blocks], int32, padded with 0
    merges: Merges | None
    num_tokens: int
    block_size: int
    queries_per_kv_head: int
    tile_rows: int
    window: int | None

    @property
    def num_parts(self) -> int:
        return len(self.query_tokens) - self.num_tokens


@dataclass(frozen=True, slots=True)
class _Run:
    """Tokens that attend over the same blocks."""

    table: int  # index of the sequence whose table they read
    tokens: Sequence[int]  # packed
    positions: Sequence[int]
    first_key: int
    stop_key: int
    is_whole: bool  # whether that is all that its tokens see


def plan_attention(
    batch: PagedBatch,
    queries_per_kv_head: int,
    dtype: torch.dtype,
    device: torch.device,
    rule: SplitRule,
    window: int | None = None,
) -> TritonPlan:
    """Split a step of at least one sequence into tiles, and bring them to the device in one transfer.

    `queries_per_kv_head` is num_heads / num_kv_heads; `dtype` is the query's; `window` is that of `ScoreRules`.
    """
    runs = _runs(batch, rule, window)
    most_rows = CHUNK_TILE_ROWS if rule.batch_invariant else max(len(run.tokens) for run in runs) * queries_per_kv_head
    tile_rows = tile_rows_for(most_rows, dtype)
    builder = _Builder(
        batch, queries_per_kv_head, tile_rows, window, key_alignment=KEY_ALIGNMENT if rule.batch_invariant else 1
    )
    tiles_per_run = [-(-len(run.tokens) * queries_per_kv_head // tile_rows) for run in runs]
    work = sum((run.stop_key - run.first_key) * count for run, count in zip(runs, tiles_per_run, strict=True))
    part_keys = max(rule.min_part_keys, work // rule.num_programs)
    for run in runs:
        builder.add(run, part_keys)
    return builder.build(device)


def tile_rows_for(max_rows: int, dtype: torch.dtype) -> int:
    """Return the rows of a step's tiles; `max_rows` is the most that attend over the same blocks.

    Few distinct values, since each is compiled apart. A decode beside a chunk leaves most rows of its tile empty: it
    waits for memory, not for arithmetic.
    """
    return MIN_TILE if max_rows <= MIN_TILE or dtype.itemsize > 2 else CHUNK_TILE_ROWS


def _runs(batch: PagedBatch, rule: SplitRule, window: int | None) -> list[_Run]:
    """Return the step's runs: a sequence's tokens over its keys, or a group's over its prefix and each over its own."""
    starts = [0, *accumulate(sequence.num_new for sequence in batch.sequences)]
    groups = _groups(batch, rule, window)
    prefix_keys = {member: group.num_blocks * batch.block_size for group in groups for member in group.members}
    alignment = KEY_ALIGNMENT if rule.batch_invariant else 1
    runs = []
    for index, sequence in enumerate(batch.sequences):
        first_key = prefix_keys.get(index, _first_visible(sequence.num_context, window) // alignment * alignment)
        tokens = range(starts[index], starts[index + 1])
        positions = range(sequence.num_context, sequence.num_tokens)
        runs.append(_Run(index, tokens, positions, first_key, sequence.num_tokens, index not in prefix_keys))
    for group in groups:
        tokens_of_members = [starts[member] for member in group.members]
        positions_of_members = [batch.sequences[member].num_context for member in group.members]
        stop_key = group.num_blocks * batch.block_size
        runs.append(_Run(group.members[0], tokens_of_members, positions_of_members, 0, stop_key, is_whole=False))
    return runs


def _groups(batch: PagedBatch, rule: SplitRule, window: int | None) -> list[PrefixGroup]:
    """Return the groups of decodes, indices into the batch, if sharing saves enough. A window must hide nothing."""
    decodes = [
        index
        for index, sequence in enumerate(batch.sequences)
        if sequence.num_new == 1 and not _first_visible(sequence.num_context, window)
    ]
    found = find_prefix_groups(PagedBatch(tuple(batch.sequences[index] for index in decodes), batch.block_size))
    if sum((len(group.members) - 1) * group.num_blocks for group in found) * batch.block_size < rule.min_saved_keys:
        return []
    return [PrefixGroup(tuple(decodes[member] for member in group.members), group.num_blocks) for group in found]


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


class _Builder:
    """Tiles as they are added, and the queries that are their rows."""

    def __init__(
        self, batch: PagedBatch, queries_per_kv_head: int, tile_rows: int, window: int | None, key_alignment: int
    ) -> None:
        self._batch = batch
        self._per_head = queries_per_kv_head
        self._tile_rows = tile_rows
        self._window = window
        self._key_alignment = key_alignment  # of a tile's first key: 1, or a multiple of an iteration's keys
        self._tiles = array("i")
        self._num_tokens = sum(sequence.num_new for sequence in batch.sequences)
        self._tokens = array("i", range(self._num_tokens))
        self._positions = array("i")
        for sequence in batch.sequences:
            self._positions.extend(range(sequence.num_context, sequence.num_tokens))

    def add(self, run: _Run, part_keys: int) -> None:
        """Add a run's tiles, split into parts of about so many keys."""
        num_keys = run.stop_key - run.first_key
        num_parts = max(1, round(num_keys / part_keys))
        if run.is_whole and num_parts == 1:
            self._add_tiles(run, run.tokens[0], run.first_key, run.stop_key)
            return
        size = -(-num_keys // (num_parts * KEY_ALIGNMENT)) * KEY_ALIGNMENT
        for first_key in range(run.first_key, run.stop_key, size):
            first_query = len(self._tokens)
            self._tokens.extend(run.tokens)
            self._positions.extend(run.positions)
            stop_key = min(first_key + size, run.stop_key)
            self._add_tiles(run, first_query, first_key, stop_key)

    def _add_tiles(self, run: _Run, first_query: int, first_key: int, stop_key: int) -> None:
        """Add tiles of a run's queries over those of the keys that a tile's rows may see; none is not left out."""
        first_row = first_query * self._per_head
        stop_row = first_row + len(run.tokens) * self._per_head
        for row in range(first_row, stop_row, self._tile_rows):
            num_rows = min(self._tile_rows, stop_row - row)
            positions = self._positions[row // self._per_head : (row + num_rows - 1) // self._per_head + 1]
            visible = _first_visible(min(positions), self._window)
            first = max(first_key, visible // self._key_alignment * self._key_alignment)
            stop = max(first, min(stop_key, max(positions) + 1))
            self._tiles.extend((run.table, row, num_rows, first, stop))

    def build(self, device: torch.device) -> TritonPlan:
        merged, starts, parts = self._merges()
        lengths = [-(-sequence.num_tokens // self._batch.block_size) for sequence in self._batch.sequences]
        width = max(lengths)
        tables = array("i")
        for sequence, length in zip(self._batch.sequences, lengths, strict=True):
            tables.extend(sequence.block_ids[:length])
            tables.extend(array("i", [0]) * (width - length))
        segments = (self._tiles, self._tokens, self._positions, tables, merged, starts, parts)
        on_device = _to_device(segments, device)
        return TritonPlan(
            tiles=on_device[0].view(-1, 5),
            query_tokens=on_device[1],
            query_positions=on_device[2],
            block_tables=on_device[3].view(len(lengths), width),
            merges=Merges(*on_device[4:]) if parts else None,
            num_tokens=self._num_tokens,
            block_size=self._batch.block_size,
            queries_per_kv_head=self._per_head,
            tile_rows=self._tile_rows,
            window=self._window,
        )

    def _merges(self) -> tuple[Ints, Ints, Ints]:
        """Return the tokens that have parts, where each one's begin, and the parts by token."""
        part_tokens = self._tokens[self._num_tokens :]
        parts = array("i", sorted(range(len(part_tokens)), key=part_tokens.__getitem__))
        tokens, starts = array("i"), array("i")
        for place, part in enumerate(parts):
            if not tokens or tokens[-1] != part_tokens[part]:
                tokens.append(part_tokens[part])
                starts.append(place)
        starts.append(len(parts))
        return tokens, starts, parts


def _to_device(segments: Sequence[Ints], device: torch.device) -> list[Tensor]:
    """Return the segments as aligned views of one tensor."""
    packed = array("i")
    starts = []
    for segment in segments:
        starts.append(len(packed))
        packed.extend(segment)
        packed.extend(array("i", [0]) * (-len(segment) % ALIGNMENT))
    host = torch.frombuffer(packed, dtype=torch.int32)
    values = sent(host, device)
    return [values[start : start + len(segment)] for start, segment in zip(starts, segments, strict=True)]
