"""Whose prompts a drafter computes: one request's while it is not known whether drafts pay, then where they do."""

from collections.abc import Sequence
from dataclasses import dataclass

TRIAL_SHARE = 1 / 128  # of the engine's time, the most that a first trial takes; a next one, where it was in vain, half
LEAST_TRIAL_SHARE = TRIAL_SHARE / 32
TRIAL_ROUNDS = 4  # that a trial is taken to draft for, each as long as a step: until that is measured
LEAST_TRIAL_TOKENS = 16  # that a request is still to get, for a trial on it to tell something
FORESEEN_TOKENS = 128  # that a request is taken to get at most: it may end long before its limit
MIN_RETURN = 1.5  # times what computing a prompt takes, that drafting is to save: estimates are only estimates


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request whose prompt, or some of it, the drafter would have to compute before it drafts for it."""

    request_id: str
    num_remaining: int  # tokens that it may still get
    seconds: float  # that computing what is missing is expected to take


class Trials:
    """Lets the drafter be tried on one request at a time, and no more than is earned by the time that passes."""

    def __init__(self) -> None:
        self._share = TRIAL_SHARE
        self._allowance = 0.0  # seconds
        self._request_id: str | None = None  # on which it is tried

    def earn(self, seconds: float) -> None:
        """Note how long a step took."""
        self._allowance += self._share * seconds

    def pay(self, seconds: float) -> None:
        """Note what was spent on a trial."""
        self._allowance -= seconds

    def succeed(self) -> None:
        """Note that drafts are found to pay: should that end, it is soon tried again."""
        self._share = TRIAL_SHARE

    def give_up(self) -> None:
        """Note that drafts are not expected to pay: whoever is tried next, be it the same, has to be afforded."""
        self._request_id = None

    def choose(self, candidates: Sequence[Candidate], plain_seconds: float) -> str | None:
        """Return on whom to try the drafter; None while that cannot be afforded. A trial goes on where it began."""
        if any(one.request_id == self._request_id for one in candidates):
            return self._request_id
        telling = [one for one in candidates if one.num_remaining >= LEAST_TRIAL_TOKENS]
        cheapest = min(telling, key=lambda one: one.seconds, default=None)
        if cheapest is None or cheapest.seconds + TRIAL_ROUNDS * plain_seconds > self._allowance:
            return None
        self._request_id = cheapest.request_id
        self._allowance = 0.0
        self._share = max(LEAST_TRIAL_SHARE, self._share / 2)
        return cheapest.request_id


def worth_joining(
    candidates: Sequence[Candidate], speedup_without: float, speedup_with: float, plain_seconds: float
) -> list[str]:
    """Return the requests that drafts pay for, their prompts included, cheapest first.

    The speed-ups are of a step in which no candidate drafts and one in which all do; `plain_seconds` is a step's time
    without drafts.
    """
    saved_a_token = plain_seconds * (1.0 / speedup_without - 1.0 / speedup_with) / len(candidates)
    return [
        one.request_id
        for one in sorted(candidates, key=lambda one: one.seconds)
        if min(one.num_remaining, FORESEEN_TOKENS) * saved_a_token > MIN_RETURN * one.seconds
    ]
