"""How often drafted tokens come true, estimated from what came true lately."""

PRIOR_WEIGHT = 4.0  # drafted tokens that the assumption counts for, where nothing was tried yet
FADING = 0.995  # of what is known, for each step in which nothing was tried


class Acceptance:
    """The share of tried tokens that were accepted, the recent ones counting most.

    A token is tried if all before it in its draft were accepted: what stands behind a rejected one says nothing.
    """

    def __init__(self, memory_tokens: float) -> None:
        """Of what was tried `memory_tokens` tokens ago, about a third counts."""
        self._keep = 1.0 - 1.0 / memory_tokens
        self._tried = 0.0
        self._accepted = 0.0

    @property
    def num_tried(self) -> float:
        """How many tokens were tried, those counting less that were long ago."""
        return self._tried

    def note(self, accepted: int, tried: int) -> None:
        kept = self._keep**tried
        self._tried = kept * self._tried + tried
        self._accepted = kept * self._accepted + accepted

    def fade(self) -> None:
        """Know a little less: what did not come true then may come true now, and only trying tells."""
        self._tried *= FADING
        self._accepted *= FADING

    def rate(self, assumed: float) -> float:
        """Return the estimate, between 0 and 1; `assumed` is what it is without any experience."""
        return (self._accepted + PRIOR_WEIGHT * assumed) / (self._tried + PRIOR_WEIGHT)
