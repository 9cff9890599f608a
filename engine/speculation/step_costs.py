"""What a step that only decodes costs, with drafted tokens to check and without, as measured while the engine runs."""

import math

from engine.speculation.samples import Samples

ASSUMED_PER_TOKEN = 0.03  # of a step's time, for each drafted token, until it is measured
LEARNED_SHARE = 0.5  # of the least that a drafted token was measured to take, in steps with another number of them
FORGETTING_STEPS = 512  # after which a measurement that is not renewed counts half


class StepCosts:
    """Seconds by how many requests decode and how many tokens are drafted beside them.

    Steps of about the same size share a cell: sizes up to 8 requests have their own, then each doubling; drafted tokens
    go by powers of two.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._plain: dict[int, Samples] = {}
        self._drafted: dict[tuple[int, int], Samples] = {}  # of ratios to the plain step

    def note(self, num_requests: int, num_drafted: int, seconds: float) -> None:
        """Note a step in which `num_requests` decoded, without the time that drafting took."""
        self._steps += 1
        batch = _batch_cell(num_requests)
        if not num_drafted:
            self._plain.setdefault(batch, Samples()).add(seconds, self._steps)
        elif plain := self.plain_seconds(num_requests):
            cell = batch, _draft_cell(num_drafted)
            self._drafted.setdefault(cell, Samples()).add(max(1.0, seconds / plain), self._steps)
            if seconds < plain:  # without drafts it would not take longer: the machine was busy, and is no more
                self._plain[batch].correct(seconds)

    def plain_seconds(self, num_requests: int) -> float | None:
        """Return the seconds of a step without drafts, None while that is not known."""
        samples = self._plain.get(_batch_cell(num_requests))
        return None if samples is None or not samples.is_enough else samples.middle

    def plain_age(self, num_requests: int) -> int:
        """Return how many steps ago one without drafts was measured."""
        samples = self._plain.get(_batch_cell(num_requests))
        return self._steps if samples is None else self._steps - samples.noted_at

    def ratio(self, num_requests: int, num_drafted: int) -> float:
        """Return how many times as long a step takes with `num_drafted` tokens, at least 1, as without."""
        batch = _batch_cell(num_requests)
        samples = self._drafted.get((batch, _draft_cell(num_drafted)))
        if samples is None or not samples.is_enough:
            return 1.0 + self._per_token(batch) * num_drafted
        assumed = 1.0 + ASSUMED_PER_TOKEN * num_drafted
        return assumed + self._counting(samples) * (samples.middle - assumed)

    def _per_token(self, batch: int) -> float:
        """Return what a drafted token is taken to cost where nothing was measured: some of the least that was, with
        other numbers of them, so that what does not pay need not be tried with each."""
        learned = [
            self._counting(samples) * (LEARNED_SHARE * (samples.middle - 1.0) / 2**cell - ASSUMED_PER_TOKEN)
            for (of_batch, cell), samples in self._drafted.items()
            if of_batch == batch and samples.is_enough
        ]
        return ASSUMED_PER_TOKEN + max(0.0, min(learned, default=0.0))

    def _counting(self, samples: Samples) -> float:
        return math.exp2((samples.noted_at - self._steps) / FORGETTING_STEPS)


def _batch_cell(num_requests: int) -> int:
    return num_requests if num_requests <= 8 else 8 + (num_requests - 1).bit_length()


def _draft_cell(num_drafted: int) -> int:
    """Return 0 for one token, 1 for two, 2 for up to four, 3 for up to eight."""
    return (num_drafted - 1).bit_length()
