"""The plan of one step, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.offloading import Transfer
from engine.request import Request, RequestError

Sampled = tuple[int, ...] | RequestError  # a request's next tokens, or why it must end
Drafts = Mapping[str, tuple[int, ...]]  # by request id: what may come next

NO_DRAFTS: Drafts = {}


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: `num_scheduled_tokens` tokens from `num_computed_tokens` on, `draft` the last."""

    request: Request
    num_computed_tokens: int  # before the step
    num_scheduled_tokens: int
    draft: tuple[int, ...] = ()  # proposals beyond the known tokens; each whose turn comes is checked by sampling

    @property
    def num_known_tokens(self) -> int:
        """Scheduled tokens that are no proposals."""
        return self.num_scheduled_tokens - len(self.draft)

    @property
    def samples(self) -> bool:
        """Whether the step reaches the newest known token, whose logits give the next one."""
        return self.num_computed_tokens + self.num_known_tokens == self.request.num_tokens

    @property
    def num_rejected_tokens(self) -> int:
        """After `Scheduler.update`: tokens of the draft that did not become output, computed in vain."""
        stop = self.num_computed_tokens + self.num_scheduled_tokens
        return max(0, min(len(self.draft), stop + 1 - self.request.num_tokens))


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that one step may hold."""

    num_seqs: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step."""

    scheduled: tuple[ScheduledRequest, ...]
    num_tokens: int
    preempted: tuple[Request, ...]
    transfers: tuple[Transfer, ...] = ()  # to be made before anything is written, in this order
