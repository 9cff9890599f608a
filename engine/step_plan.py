"""The plan of one step, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.offloading import Transfer
from engine.request import Request, RequestError, RequestState

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
    samples: bool = field(init=False)  # whether it reaches the newest token to be known, whose logits give the next one

    def __post_init__(self) -> None:
        reached = self.num_computed_tokens + self.num_known_tokens
        object.__setattr__(self, "samples", reached == self.request.num_expected_tokens)

    @property
    def num_known_tokens(self) -> int:
        """Scheduled tokens that are no proposals."""
        return self.num_scheduled_tokens - len(self.draft)

    @property
    def has_pending_token(self) -> bool:
        """Before `Scheduler.launched`: whether the last of its tokens is what the step under way samples."""
        return self.num_computed_tokens + self.num_known_tokens > self.request.num_tokens

    @property
    def has_prompt(self) -> bool:
        """Whether its request holds the KV of the whole prompt when the step has ended."""
        return self.num_computed_tokens + self.num_known_tokens >= self.request.num_prompt_tokens

    @property
    def token_ids(self) -> list[int]:
        """Before `Scheduler.launched`: the scheduled tokens, 0 in the place of a pending one."""
        start = self.num_computed_tokens
        known = self.request.token_ids[start : start + self.num_known_tokens]
        return [*known, *[0] * (self.num_known_tokens - len(known)), *self.draft]

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
    is_ahead: bool = False  # planned while the step before it was under way

    @property
    def requests(self) -> list[Request]:
        return [share.request for share in self.scheduled]

    @property
    def chooses_late(self) -> bool:
        """Before `Scheduler.launched`: whether it samples by a token that is pending, so that only its forward can run
        before the step under way has ended."""
        return any(share.has_pending_token and share.request.chooses_by_output for share in self.scheduled)

    def of_those_running(self) -> "SchedulerOutput":
        """Return it without the shares of requests that ended, or start over, since it was planned: computed in vain,
        and nobody's."""
        if not self.is_ahead:
            return self
        going_on = tuple(share for share in self.scheduled if share.request.state is RequestState.RUNNING)
        return replace(self, scheduled=going_on, num_tokens=sum(share.num_scheduled_tokens for share in going_on))


class Launched(Protocol):
    """A step that a runner has begun, or run."""

    def choose(self) -> None:
        """Begin to choose the tokens of a plan that chooses late: the step before it has ended, and nothing was
        launched since. Those of other plans are chosen already. Who has ended meanwhile chooses in vain.

        Raises DeviceOutOfMemory, and what else goes wrong.
        """

    def results(self) -> Mapping[str, Sampled]:
        """Wait for the step. Returns, by request id, the tokens of each share that samples, and the error of each that
        must end; raises what the step raised."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A step that is over when it is launched."""

    sampled: Mapping[str, Sampled]

    def choose(self) -> None:
        pass

    def results(self) -> Mapping[str, Sampled]:
        return self.sampled
