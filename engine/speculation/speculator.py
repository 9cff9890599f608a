"""What the engine needs of whoever proposes tokens, and of whoever finds them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import Request
from engine.step_plan import NO_DRAFTS, Drafts, SchedulerOutput


class Speculator(Protocol):
    """Decides what is drafted. Proposals may be wrong; they must be token ids of the model."""

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        """Return drafts of at most `room` tokens together, for requests that are each behind by one token."""

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        """Learn from a step that was taken in, and from how long it took, proposals included."""


class NoSpeculation:
    """Drafts nothing."""

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        return NO_DRAFTS

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Offer:
    """What a drafter could propose for a request."""

    num_tokens: int  # at least 1
    strength: int = 0  # offers of one strength come true about equally often
    guess: int | None = None  # the first token, where it is known at no cost
    num_behind: int = 0  # known tokens that the drafter is to compute before it proposes one


class Drafter(Protocol):
    """Finds tokens that are likely to come next."""

    def offer(self, request: Request, most: int) -> Offer | None:
        """Return what `draft` could give for a request, of `most` tokens at most; None for nothing. Cheap."""

    def catch_up(self, requests: Sequence[Request]) -> int:
        """Compute what requests with an offer of this step are behind by, the first ones first, as far as one step of
        the drafter's goes. Returns the number of tokens computed.

        Raises whatever the drafter fails with."""

    def draft(self, wanted: Mapping[str, int], requests: Mapping[str, Request]) -> Drafts:
        """Return drafts of up to the wanted numbers of tokens, by request id, for requests with an offer of this step.

        Raises whatever the drafter fails with."""

    def retain(self, request_ids: Collection[str]) -> None:
        """Forget what is kept about all other requests."""
