"""What one step attends over: sequences in blocks, described on the host."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PagedSequence:
    """One sequence's part in a step.

    Its `num_new` query tokens sit at positions `num_context` onward; query i attends to every position up to its own.
    """

    block_ids: Sequence[int]  # block table; holds at least num_context + num_new tokens
    num_context: int  # tokens whose KV was stored by earlier steps, or by another sequence in this one
    num_new: int  # query tokens of this step, at least 1

    @property
    def num_tokens(self) -> int:
        return self.num_context + self.num_new


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """The sequences of a step, in the order of their packed query tokens."""

    sequences: tuple[PagedSequence, ...]
    block_size: int

    def slot_mapping(self) -> list[int]:
        """Return the destination slot (block_id * block_size + offset) of each packed query token."""
        size = self.block_size
        return [
            sequence.block_ids[position // size] * size + position % size
            for sequence in self.sequences
            for position in range(sequence.num_context, sequence.num_tokens)
        ]
