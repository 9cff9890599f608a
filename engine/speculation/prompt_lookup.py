"""Drafts from a request's own tokens: what followed the last time that its newest tokens stood there.

Prompt lookup (Saxena 2023). Outputs that quote, correct or summarise their prompts repeat long runs of it.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.request import Request
from engine.speculation.speculator import Offer
from engine.step_plan import Drafts

SHORTEST_MATCH = 2  # tokens: a single one is followed by too many others
LONGEST_MATCH = 16  # tokens that are compared


class PromptLookup:
    """Keeps the tokens of each request that decodes as an array. A look costs microseconds, whatever the length."""

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}
        self._found: dict[str, tuple[int, ...]] = {}

    def offer(self, request: Request, most: int) -> Offer | None:
        history = self._histories.get(request.request_id)
        if history is None:
            history = self._histories[request.request_id] = _History()
        history.extend(request.token_ids)
        found, length = follow(history.tokens, most)
        self._found[request.request_id] = found
        return Offer(len(found), length.bit_length(), found[0]) if found else None

    def catch_up(self, requests: Sequence[Request]) -> int:
        return 0  # nobody is ever behind

    def draft(self, wanted: Mapping[str, int], requests: Mapping[str, Request]) -> Drafts:
        return {request_id: self._found[request_id][:number] for request_id, number in wanted.items()}

    def retain(self, request_ids: Collection[str]) -> None:
        for gone in [request_id for request_id in self._histories if request_id not in request_ids]:
            del self._histories[gone]
            self._found.pop(gone, None)


class _History:
    """A request's known tokens in an array with room to grow."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, dtype=np.int32)
        self._size = 0

    @property
    def tokens(self) -> NDArray[np.int32]:
        return self._buffer[: self._size]

    def extend(self, token_ids: list[int]) -> None:
        """Take in what is new in `token_ids`, which only ever grow."""
        if len(token_ids) > len(self._buffer):
            grown = np.empty(2 * len(token_ids), dtype=np.int32)
            grown[: self._size] = self.tokens
            self._buffer = grown
        self._buffer[self._size : len(token_ids)] = token_ids[self._size :]
        self._size = len(token_ids)


def follow(tokens: NDArray[np.int32], most: int) -> tuple[tuple[int, ...], int]:
    """Return up to `most` tokens that followed the longest earlier occurrence of the newest tokens, the latest such
    occurrence, and how many tokens matched. Without a match of SHORTEST_MATCH tokens nothing follows.

    An occurrence that overlaps the newest tokens is a repetition, which is taken to go on.
    """
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    length = 1
    while length < LONGEST_MATCH:
        ends_of_longer = ends[np.searchsorted(ends, length) :]
        ends_of_longer = ends_of_longer[tokens[ends_of_longer - length] == tokens[last - length]]
        if not len(ends_of_longer):
            break
        ends = ends_of_longer
        length += 1
    if length < SHORTEST_MATCH or not len(ends):
        return (), 0
    start = int(ends[-1]) + 1
    period = last + 1 - start
    return tuple(tokens[start + np.arange(most) % period].tolist()), length
