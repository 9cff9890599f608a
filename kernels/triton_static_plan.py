"""Plans whose tensors keep their sizes and their places from step to step, as a CUDA graph needs them.

What a step has less than there is room for is filled up: with tiles that have no rows, and with merges that have no
parts, which write nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kernels.transfers import to_send
from kernels.triton_plan import ALIGNMENT, CHUNK_TILE_ROWS, MIN_TILE, Merges, SplitRule, TritonPlan


@dataclass(frozen=True, slots=True)
class PlanRoom:
    """How much a plan of decodes may hold."""

    num_tokens: int
    num_tiles: int
    num_parts: int  # 0 where nothing is merged
    num_blocks: int  # of a block table

    @classmethod
    def of(cls, plan: TritonPlan, num_blocks: int, rule: SplitRule) -> "PlanRoom":
        """Return room for a step's plan and for those of other steps with as many decodes, by the same rule.

        A plan has a tile for each decode, for each 16 rows of a group's, and for each program that splitting adds. Each
        of a group's tiles has parts of as many decodes as it has rows. `fits` holds a plan against it all the same.
        """
        num_tokens, per_head = plan.num_tokens, plan.queries_per_kv_head
        num_tiles = 2 * num_tokens + num_tokens * per_head // MIN_TILE + rule.num_programs
        num_parts = 2 * num_tokens + num_tiles * max(1, CHUNK_TILE_ROWS // per_head)
        return cls(num_tokens, num_tiles, num_parts if plan.merges is not None else 0, num_blocks)

    def fits(self, plan: TritonPlan) -> bool:
        """Whether a plan may be held."""
        return (
            plan.num_tokens == self.num_tokens
            and len(plan.tiles) <= self.num_tiles
            and plan.num_parts <= self.num_parts
            and plan.block_tables.shape[1] <= self.num_blocks
            and (plan.merges is not None) == (self.num_parts > 0)
        )

    def lengths(self) -> tuple[int, ...]:
        """Return the number of values of each of a plan's tensors."""
        num_queries = self.num_tokens + self.num_parts
        of_merges = (self.num_tokens, self.num_tokens + 1, self.num_parts) if self.num_parts else (0, 0, 0)
        return (5 * self.num_tiles, num_queries, num_queries, self.num_tokens * self.num_blocks, *of_merges)


class StaticPlan:
    """A plan that is filled anew before each step."""

    def __init__(self, room: PlanRoom, like: TritonPlan, device: torch.device) -> None:
        """`like` is a plan that fits; it says what does not change."""
        self.room = room
        lengths = room.lengths()
        padded = [-(-length // ALIGNMENT) * ALIGNMENT for length in lengths]
        self._starts = [0, *accumulate(padded)]
        self._values = torch.zeros(self._starts[-1], dtype=torch.int32, device=device)
        tiles, tokens, positions, tables, *merges = _views(self._values, self._starts, lengths)
        self.plan = replace(
            like,
            tiles=tiles.view(-1, 5),
            query_tokens=tokens,
            query_positions=positions,
            block_tables=tables.view(room.num_tokens, room.num_blocks),
            merges=Merges(*merges) if room.num_parts else None,
        )

    def fill(self, fresh: TritonPlan) -> None:
        """Take over a plan that fits, whose tensors are on the host, in one transfer."""
        assert self.room.fits(fresh)
        assert (fresh.tile_rows, fresh.window) == (self.plan.tile_rows, self.plan.window)
        host = torch.zeros(len(self._values), dtype=torch.int32)
        tiles, tokens, positions, tables, *merges = _views(host, self._starts, self.room.lengths())
        _begin(tiles, fresh.tiles)
        _begin(tokens, fresh.query_tokens)
        _begin(positions, fresh.query_positions)
        tables.view(self.room.num_tokens, -1)[:, : fresh.block_tables.shape[1]] = fresh.block_tables
        if fresh.merges is not None:
            merged, starts, parts = merges
            _begin(merged, fresh.merges.tokens)
            starts.fill_(len(fresh.merges.parts))  # a merge from there to there has no parts
            _begin(starts, fresh.merges.starts)
            _begin(parts, fresh.merges.parts)
        self._values.copy_(to_send(host, self._values.device), non_blocking=True)


def _views(values: Tensor, starts: Sequence[int], lengths: Sequence[int]) -> list[Tensor]:
    return [values[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def _begin(target: Tensor, values: Tensor) -> None:
    target[: values.numel()] = values.flatten()
