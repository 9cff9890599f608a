"""Stop strings: found across the borders of tokens, in an output that grows."""

from collections.abc import Sequence

from engine.detokenizing import OutputText


class StopFinder:
    """Looks for stop strings in one output as it grows, at a cost that does not depend on how long it is."""

    def __init__(self, stops: Sequence[str], text: OutputText) -> None:
        self._stops = stops
        self._text = text
        self._num_kept = max(map(len, stops)) - 1
        self._tail = ""  # the last characters that are settled: a stop string may begin in them
        self._num_settled = 0
        self._seen = ""  # the tail, and what was behind it, when the tokens before came
        self.num_tokens = 0  # taken in so far

    def find(self, token_ids: Sequence[int]) -> int | None:
        """Take in an output's next tokens. Returns at which character of its text the first stop string begins that
        they complete, or None.

        Strings that were complete before do not count: they were seen, and passed over, when their tokens came.
        """
        self.num_tokens += len(token_ids)
        fresh = self._text.extend(token_ids)
        start_of_text = self._num_settled - len(self._tail)
        settled = self._tail + fresh
        text = settled + self._text.run_text
        num_old = _common_prefix(self._seen, text)
        starts = (text.find(stop, max(0, num_old - len(stop) + 1)) for stop in self._stops)
        found = min((start for start in starts if start >= 0), default=None)
        self._num_settled += len(fresh)
        self._tail = settled[max(0, len(settled) - self._num_kept) :]
        self._seen = self._tail + self._text.run_text
        return None if found is None else start_of_text + found


def _common_prefix(first: str, second: str) -> int:
    """Return how many characters two texts begin with in common."""
    if second.startswith(first):
        return len(first)
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
