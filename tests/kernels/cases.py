"""Attention cases: sequences in scattered blocks, some shared, and NaN in every block that belongs to nobody."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.score_rules import ScoreRules

Shared = tuple[tuple[str, int], ...]  # names of shared runs of blocks and their lengths in tokens, outermost first


@dataclass(frozen=True, slots=True)
class SequenceLayout:
    """One sequence: tokens stored before, query tokens, and which runs of blocks it begins with."""

    num_context: int
    num_new: int
    shared: Shared = ()
    spare_blocks: int = 0  # blocks of the table that hold nothing yet


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of query and KV heads and their dimension."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The arguments of paged attention. Shapes as in `kernels.reference`."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    batch: PagedBatch
    rules: ScoreRules


HEADS = {
    "mha-32": Heads(4, 4, 32),
    "mha-96": Heads(2, 2, 96),
    "gqa-64": Heads(9, 3, 64),
    "gqa-40": Heads(4, 2, 40),
    "gqa-80": Heads(6, 2, 80),
    "mqa-128": Heads(8, 1, 128),
}

TEMPLATE: Shared = (("template", 96),)
LAYOUTS: dict[str, tuple[SequenceLayout, ...]] = {
    "first-token": (SequenceLayout(0, 1),),
    "decodes": tuple(SequenceLayout(n, 1) for n in (0, 1, 15, 16, 17, 31, 32, 33, 100, 7)),
    "chunks": (SequenceLayout(0, 37), SequenceLayout(16, 16), SequenceLayout(5, 2), SequenceLayout(50, 31)),
    "mixed": (SequenceLayout(0, 20), SequenceLayout(90, 1), SequenceLayout(33, 7), SequenceLayout(64, 1, (), 2)),
    "shared": (*(SequenceLayout(130 + n, 1, (("document", 128),)) for n in range(5)), SequenceLayout(20, 1)),
    "shared-by-decodes-and-chunks": (
        SequenceLayout(128, 9, (("document", 128),)),
        SequenceLayout(128, 1, (("document", 128),)),
        SequenceLayout(140, 1, (("document", 128),)),
        SequenceLayout(0, 33),
        SequenceLayout(131, 30, (("document", 128),), 1),
    ),
    "window": (SequenceLayout(150, 1), SequenceLayout(100, 40), SequenceLayout(39, 1), SequenceLayout(10, 70)),
    "nested": (
        *(SequenceLayout(230 + n, 1, (*TEMPLATE, ("one", 128))) for n in range(3)),
        *(SequenceLayout(232, n, (*TEMPLATE, ("two", 128))) for n in (1, 6)),
        *(SequenceLayout(100, 1 + n, TEMPLATE) for n in range(2)),
        SequenceLayout(40, 3),
    ),
    "many-shallow-few-deep": (
        *(SequenceLayout(97 + n, 1, TEMPLATE) for n in range(7)),
        *(SequenceLayout(130, 1, (*TEMPLATE, ("one", 32))) for _ in range(2)),
    ),
    # The first sequence stores in this step what the others already have as their context.
    "shared-within-the-step": (
        SequenceLayout(0, 70, (("document", 64),)),
        SequenceLayout(64, 1, (("document", 64),)),
        SequenceLayout(64, 12, (("document", 64),)),
    ),
}


def build_case(
    layouts: Sequence[SequenceLayout], heads: Heads, block_size: int, dtype: torch.dtype, seed: int = 0
) -> AttentionCase:
    """Return a case with random values. Block 0 belongs to nobody. Shared runs are rounded down to whole blocks."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = 8 + sum(-(-(s.num_context + s.num_new) // block_size) + s.spare_blocks for s in layouts)
    unused = list(range(1, num_blocks))
    random.Random(seed).shuffle(unused)
    runs: dict[Shared, list[int]] = {}
    tables = [_block_table(layout, block_size, runs, unused) for layout in layouts]
    batch = PagedBatch(
        tuple(PagedSequence(table, s.num_context, s.num_new) for table, s in zip(tables, layouts, strict=True)),
        block_size,
    )
    written = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    stored = PagedBatch(tuple(PagedSequence(s.block_ids, 0, s.num_tokens) for s in batch.sequences), block_size)
    written[stored.slot_mapping()] = True
    caches = torch.randn(2, num_blocks * block_size, heads.num_kv_heads, heads.head_dim, generator=generator)
    caches[:, ~written] = 0.0  # a held block is finite, its unwritten tail included
    caches = caches.unflatten(1, (num_blocks, block_size))
    nobodys = sorted(set(range(num_blocks)).difference(*tables))
    caches[:, nobodys] = torch.nan
    query = torch.randn(sum(s.num_new for s in layouts), heads.num_heads, heads.head_dim, generator=generator)
    key_cache, value_cache = caches.to(dtype)
    return AttentionCase(query.to(dtype), key_cache, value_cache, batch, ScoreRules(0.17))


def blocks_apart(cache: Tensor) -> Tensor:
    """Return a cache of the same content whose blocks have something else between them, KV heads first in each."""
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    between = torch.zeros(num_blocks, 3 * block_size, dtype=cache.dtype)
    by_block = cache.transpose(1, 2).flatten(1)
    whole = torch.cat([x.view(torch.uint8) for x in (between, by_block, between)], dim=1).view(cache.dtype)
    own = whole[:, between.shape[1] : between.shape[1] + by_block.shape[1]]
    return own.view(num_blocks, num_kv_heads, block_size, head_dim).transpose(1, 2)


def _block_table(
    layout: SequenceLayout, block_size: int, runs: dict[Shared, list[int]], unused: list[int]
) -> list[int]:
    table: list[int] = []
    for depth in range(len(layout.shared)):
        path = layout.shared[: depth + 1]
        if path not in runs:
            runs[path] = [unused.pop() for _ in range(path[-1][1] // block_size)]
        table += runs[path]
    missing = -(-(layout.num_context + layout.num_new) // block_size) - len(table) + layout.spare_blocks
    return table + [unused.pop() for _ in range(missing)]
