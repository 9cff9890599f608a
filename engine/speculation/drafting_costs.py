"""What a drafter itself takes, beside the steps that check its drafts: rounds of a token each, and prompts."""

import math

from engine.speculation.samples import Samples

ASSUMED_ROUND = 0.1  # of a step's time, for a token of each request that drafts, until it is measured
NEGLIGIBLE_ROUND = 0.005  # of a step's time, which is taken to be none
GROWTH_PER_DOUBLING = 0.15  # of a round, with twice the requests in it, where that was not measured
FORGETTING_STEPS = 512  # after which a measurement that is not renewed counts half
LEAST_PREFILL_TOKENS = 64  # of a step that tells what a prompt's token takes


class DraftingCosts:
    """Seconds a round, by how many requests draft in it (sizes go by powers of two), and a token of a prompt."""

    def __init__(self) -> None:
        self._steps = 0
        self._rounds: dict[int, Samples] = {}
        self._catching_up = Samples()
        self._prefills = Samples()

    def note_step(self) -> None:
        self._steps += 1

    def note_drafting(self, num_requests: int, num_rounds: int, seconds: float) -> None:
        samples = self._rounds.setdefault(_cell(num_requests), Samples())
        samples.add(seconds / num_rounds, self._steps)

    def note_catching_up(self, num_tokens: int, seconds: float) -> None:
        self._catching_up.add(seconds / num_tokens, self._steps)

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """Note a step of the engine's with prompts in it: a drafter is no slower, until it is measured."""
        if num_tokens >= LEAST_PREFILL_TOKENS:
            self._prefills.add(seconds / num_tokens, self._steps)

    @property
    def is_measured(self) -> bool:
        """Whether rounds of any size were."""
        return any(samples.is_enough for samples in self._rounds.values())

    def round_ratio(self, num_requests: int, plain_seconds: float) -> float:
        """Return what a round of `num_requests` requests takes, as a share of a step without drafts; 0 for next to
        nothing. Of a size that was not measured it is taken from the next smaller one that was, or the next larger."""
        cell = _cell(num_requests)
        known = sorted(size for size, samples in self._rounds.items() if samples.is_enough)
        if not known:
            return ASSUMED_ROUND
        nearest = max((size for size in known if size <= cell), default=known[0])
        samples = self._rounds[nearest]
        measured = samples.middle * (1.0 + GROWTH_PER_DOUBLING) ** max(0, cell - nearest) / plain_seconds
        counting = math.exp2((samples.noted_at - self._steps) / FORGETTING_STEPS)
        ratio = ASSUMED_ROUND + counting * (measured - ASSUMED_ROUND)
        return 0.0 if measured < NEGLIGIBLE_ROUND else ratio

    def catching_up_seconds(self, num_tokens: int, plain_seconds: float, num_requests: int) -> float:
        """Return what computing tokens of a prompt takes: as it did before, else as it takes the engine, else as it
        takes that to decode as many tokens, `num_requests` in each `plain_seconds`."""
        for samples in (self._catching_up, self._prefills):
            if samples.number:
                return samples.middle * num_tokens
        return plain_seconds / num_requests * num_tokens


def _cell(num_requests: int) -> int:
    """Return 0 for one request, 1 for two, 2 for up to four, 3 for up to eight."""
    return (num_requests - 1).bit_length()
