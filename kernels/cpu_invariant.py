"""Paged attention on the CPU whose result for a query does not depend on what else is in the step.

A matrix product adds up in an order that depends on the number of keys, so keys are taken in splits of one size, which
begin at the start of the sequence, and the splits' results are added one after another. Whatever is masked adds an
exact zero. Nothing depends on whether a token comes in a chunk or as a decode, and no prefix is shared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu import add_slopes, scores_of, weights_of
from kernels.cpu_cache import Cache, Gathered
from kernels.kv_scales import KVScales
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules

SPLIT_KEYS = 256  # a product over that many is added up in one order; above about 380, float32 is not
QUERY_TILE = 128
MIN_ROWS = 8  # products of fewer rows than these are computed otherwise


@dataclass(frozen=True, slots=True)
class InvariantPart:
    """N sequences with M queries each, over equally many splits of keys."""

    rows: Tensor  # [N * M] packed query tokens
    num_sequences: int  # N
    block_ids: Tensor  # [N * blocks of a run], padded with a block of the run's own: no mask stops another's NaN
    mask: Tensor  # [N, M, 1, num_columns], 0 or -inf, over the last columns of the scores
    distances: Tensor  # [N * M, 1] position of the first key minus the query's


@dataclass(frozen=True, slots=True)
class InvariantPlan:
    """The parts of one step; built once, used by every layer of the same window."""

    parts: tuple[InvariantPart, ...]


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some adjoining queries of one sequence."""

    row: int  # packed token of the first
    position: int  # of the first
    num_queries: int
    sequence: PagedSequence
    first_split: int  # the first that a window leaves

    @property
    def num_splits(self) -> int:
        return -(-(self.position + self.num_queries) // SPLIT_KEYS) - self.first_split

    @property
    def first_masked_key(self) -> int:
        """From here on some query does not see a key, if there is no window."""
        return self.position + 1


def plan_attention(batch: PagedBatch, dtype: torch.dtype, window: int | None = None) -> InvariantPlan:
    """Split a step into parts. `dtype` is the query's; `window` is that of `ScoreRules`.

    Raises ValueError unless the block size divides a split.
    """
    if SPLIT_KEYS % batch.block_size:
        raise ValueError(f"block_size is {batch.block_size}; batch_invariant needs one that divides {SPLIT_KEYS}")
    alike: defaultdict[tuple[int, int], list[_Tile]] = defaultdict(list)
    starts = accumulate((sequence.num_new for sequence in batch.sequences), initial=0)
    for start, sequence in zip(starts, batch.sequences, strict=False):
        for tile in _tiles(start, sequence, window):
            # Tiles of many queries go apart: together they would only need more memory.
            alike[tile.num_splits, tile.row if tile.num_queries > 1 else -1].append(tile)
    return InvariantPlan(tuple(_part(tiles, batch.block_size, dtype, window) for tiles in alike.values()))


def _tiles(start: int, sequence: PagedSequence, window: int | None) -> list[_Tile]:
    tiles = []
    for first in range(sequence.num_context, sequence.num_tokens, QUERY_TILE):
        visible = 0 if window is None else max(0, first - window + 1)
        size = min(QUERY_TILE, sequence.num_tokens - first)
        row = start + first - sequence.num_context
        tiles.append(_Tile(row, first, size, sequence, visible // SPLIT_KEYS))
    return tiles


def _part(tiles: Sequence[_Tile], block_size: int, dtype: torch.dtype, window: int | None) -> InvariantPart:
    """Return the part of tiles that have the same numbers of splits and of queries."""
    splits, queries = tiles[0].num_splits, tiles[0].num_queries
    num_blocks = splits * SPLIT_KEYS // block_size
    block_ids: list[int] = []
    for tile in tiles:
        block_ids += _run(tile, num_blocks, block_size, window)
    first_keys = torch.tensor([tile.first_split * SPLIT_KEYS for tile in tiles])[:, None]
    positions = torch.tensor([tile.position for tile in tiles])[:, None] + torch.arange(queries)  # [N, M]
    distances = first_keys - positions
    masked_from = 0 if window is not None else min(t.first_masked_key - t.first_split * SPLIT_KEYS for t in tiles)
    keys = torch.arange(min(masked_from, splits * SPLIT_KEYS - 1), splits * SPLIT_KEYS)
    ahead = distances[:, :, None] + keys  # [N, M, num_columns] key position - query position
    hidden = ahead > 0
    if window is not None:
        hidden |= ahead <= -window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    rows = torch.tensor([tile.row for tile in tiles])[:, None] + torch.arange(queries)
    return InvariantPart(
        rows.flatten(), len(tiles), torch.tensor(block_ids), mask.unsqueeze(2), distances.flatten()[:, None]
    )


def _run(tile: _Tile, num_blocks: int, block_size: int, window: int | None) -> list[int]:
    """Return the tile's blocks, its first ones instead of those that slid out of the window and its last one behind."""
    begin = tile.first_split * SPLIT_KEYS // block_size
    stop = min(begin + num_blocks, -(-tile.sequence.num_tokens // block_size))
    first = 0 if window is None else max(0, tile.position - window + 1) // block_size
    seen = tile.sequence.block_ids[max(begin, first) : stop]
    return [*[seen[0]] * (stop - begin - len(seen)), *seen, *[seen[-1]] * (begin + num_blocks - stop)]


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: InvariantPlan,
    rules: ScoreRules,
    scales: KVScales | None = None,
) -> Tensor:
    """Attend as the plan says, which was made for the same window. Shapes as in `kernels.reference.paged_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    q = query.reshape(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim).transpose(0, 1)
    keys, values = Cache.both(key_cache, value_cache, scales, query.dtype)
    output = query.new_empty(num_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)
    for part in plan.parts:
        attended = _attend(q.index_select(1, part.rows), keys, values, part, rules)
        output.index_copy_(0, part.rows, attended.transpose(0, 1))
    return output.view(num_tokens, num_heads, head_dim)


def _attend(q: Tensor, keys: Cache, values: Cache, part: InvariantPart, rules: ScoreRules) -> Tensor:
    """Return the output of the part's rows. q and output: [num_kv_heads, N * M, queries_per_kv_head, head_dim]."""
    num_kv_heads, _, per_head, head_dim = q.shape
    num_matrices, num_sequences = num_kv_heads * part.num_sequences, part.num_sequences
    queries = _enough_rows(q.view(num_matrices, -1, head_dim))
    gathered_keys = Gathered(keys.gather(part.block_ids, num_sequences).multiplied(), None)
    num_rows = part.rows.numel() // num_sequences * per_head
    scores = scores_of(queries, gathered_keys, rules)[:, :num_rows].contiguous()
    by_query = scores.view(num_kv_heads, num_sequences, -1, per_head, scores.shape[-1])
    by_query[..., -part.mask.shape[-1] :] += part.mask
    by_query = by_query.flatten(1, 2)
    if rules.slopes is not None:
        add_slopes(by_query, rules.slopes, part.distances + torch.arange(scores.shape[-1]))
    weights = weights_of(by_query, rules).reshape(num_matrices, num_rows, -1, SPLIT_KEYS)
    # [num_matrices, num_splits, num_rows, SPLIT_KEYS], as one list of matrices
    by_split = _enough_rows(weights.transpose(1, 2).flatten(0, 1))
    split_values = (
        values.gather(part.block_ids, num_sequences).multiplied().view(by_split.shape[0], SPLIT_KEYS, head_dim)
    )
    by_split = torch.bmm(by_split, split_values)[:, :num_rows]
    splits = by_split.view(num_matrices, -1, *by_split.shape[1:]).unbind(1)
    total = splits[0].float()
    for split in splits[1:]:
        total += split
    return total.to(q.dtype).view(q.shape)


def _enough_rows(matrices: Tensor) -> Tensor:
    """Return matrices, [n, num_rows, num_columns], padded to a number of rows from which on no row depends on it."""
    missing = MIN_ROWS - matrices.shape[1]
    return matrices if missing <= 0 else functional.pad(matrices, (0, 0, 0, missing))
