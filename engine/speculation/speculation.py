"""Speculation that turns itself off: nothing is drafted unless steps with drafts are measured to pay."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.request import Request
from engine.speculation.acceptance import Acceptance
from engine.speculation.allotting import Allotment, Chance, allot
from engine.speculation.drafting_costs import DraftingCosts
from engine.speculation.joining import Candidate, Trials, worth_joining
from engine.speculation.speculator import Drafter, Offer
from engine.speculation.step_costs import StepCosts
from engine.step_plan import NO_DRAFTS, Drafts, SchedulerOutput

ASSUMED_RATE = 0.5  # of drafted tokens that come true, until some are tried
REQUEST_MEMORY_TOKENS = 20
COMMON_MEMORY_TOKENS = 200
REMEASURE_STEPS = 48  # after so many steps with drafts, one without tells again what it takes
PATIENCE_STEPS = 32  # in a row in which nothing was drafted, before offers are asked for less often
RESTING_STEPS = 8  # from one look at the offers to the next, then
AT_HAND_TOKENS = 16  # that a drafter computes on the way, when it drafts
TRIED_TOKENS = 6.0  # after which a drafter's rate is known well enough to compute prompts for it

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Offered:
    """An offer of the step under way, and the known tokens that it follows."""

    request: Request
    offer: Offer
    num_tokens: int

    @property
    def is_at_hand(self) -> bool:
        return self.offer.num_behind <= AT_HAND_TOKENS

    @property
    def num_remaining(self) -> int:
        return self.request.params.max_tokens - self.request.num_output_tokens


class Speculation:
    """A drafter, and what decides how many of its proposals are worth their time: how often they came true, by request
    and by strength of the offer, what steps with and without them took, and what the drafter itself took."""

    def __init__(self, drafter: Drafter, max_draft_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_draft_tokens` is per request and step; `clock` returns seconds."""
        self._drafter: Drafter | None = drafter  # None once it failed
        self._max_draft_tokens = max_draft_tokens
        self._clock = clock
        self._costs = StepCosts()
        self._drafting = DraftingCosts()
        self._trials = Trials()
        self._by_request: dict[str, Acceptance] = {}
        self._by_strength: defaultdict[int, Acceptance] = defaultdict(lambda: Acceptance(COMMON_MEMORY_TOKENS))
        self._offered: list[_Offered] = []
        self._wanted: Mapping[str, int] = {}  # what would be drafted in the step under way, were nobody behind
        self._drafter_seconds = 0.0  # of the step under way
        self._steps = 0
        self._fruitless_steps = 0

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        self._offered, self._wanted, self._drafter_seconds = [], {}, 0.0
        self._steps += 1
        plain_seconds = self._plain_seconds(len(decoding))
        if self._drafter is None or self._is_resting() or plain_seconds is None:
            return NO_DRAFTS
        drafts = NO_DRAFTS
        try:
            drafts = self._propose(self._drafter, decoding, room, plain_seconds)
        except Exception:
            logger.exception("drafting failed; from now on nothing is drafted")
            self._drafter, self._offered = None, []
        self._fruitless_steps = 0 if drafts or self._drafter_seconds else self._fruitless_steps + 1
        return drafts

    def _propose(self, drafter: Drafter, decoding: Sequence[Request], room: int, plain_seconds: float) -> Drafts:
        self._retain({request.request_id for request in decoding})
        self._offered = [
            _Offered(request, offer, request.num_tokens)
            for request in decoding
            if (offer := self._offer_of(request, drafter)) is not None
        ]
        everybody = self._allot(self._offered, len(decoding), room, plain_seconds)
        self._wanted = everybody.num_tokens
        if not self._wanted:
            self._trials.give_up()
            return NO_DRAFTS
        return self._speculate(everybody, len(decoding), room, plain_seconds)

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        drafts = {share.request.request_id: share.draft for share in plan.scheduled if share.draft}
        self._trials.earn(seconds)
        self._drafting.note_step()
        if all(share.num_known_tokens == 1 for share in plan.scheduled):
            num_drafted = sum(map(len, drafts.values()))
            self._costs.note(len(plan.scheduled), num_drafted, seconds - self._drafter_seconds)
        else:
            self._drafting.note_prefill(plan.num_tokens, seconds)
        for one in self._offered:
            guess = () if one.offer.guess is None else (one.offer.guess,)
            self._learn(one, drafts.get(one.request.request_id, guess))
        self._offered, self._drafter_seconds = [], 0.0

    def _is_resting(self) -> bool:
        return self._fruitless_steps >= PATIENCE_STEPS and self._steps % RESTING_STEPS > 0

    def _plain_seconds(self, num_requests: int) -> float | None:
        """Return what a step without drafts takes now; None where that is to be measured."""
        return (
            self._costs.plain_seconds(num_requests) if self._costs.plain_age(num_requests) < REMEASURE_STEPS else None
        )

    def _retain(self, request_ids: set[str]) -> None:
        assert self._drafter is not None, "a drafter that failed keeps nothing"
        if any(request_id not in request_ids for request_id in self._by_request):
            self._by_request = {key: value for key, value in self._by_request.items() if key in request_ids}
            self._drafter.retain(request_ids)

    def _offer_of(self, request: Request, drafter: Drafter) -> Offer | None:
        most = min(self._max_draft_tokens, request.params.max_tokens - request.num_output_tokens - 1)
        return drafter.offer(request, most) if most > 0 and request.may_draft else None

    def _allot(self, offered: Iterable[_Offered], num_requests: int, room: int, plain_seconds: float) -> Allotment:
        chances = {one.request.request_id: self._chance_of(one) for one in offered}
        round_ratio = self._drafting.round_ratio(max(1, len(chances)), plain_seconds)
        return allot(chances, num_requests, room, lambda number: self._costs.ratio(num_requests, number), round_ratio)

    def _chance_of(self, offered: _Offered) -> Chance:
        by_request = self._by_request.setdefault(offered.request.request_id, Acceptance(REQUEST_MEMORY_TOKENS))
        common = self._by_strength[offered.offer.strength].rate(ASSUMED_RATE)
        return Chance(offered.offer.num_tokens, by_request.rate(common))

    def _speculate(self, everybody: Allotment, num_requests: int, room: int, plain_seconds: float) -> Drafts:
        """Draft for those who are at hand, and let the drafter catch up with others, one at first, where that pays."""
        behind = [one for one in self._offered if one.request.request_id in self._wanted and not one.is_at_hand]
        if not behind:
            return self._draft(everybody.num_tokens)
        ready = [one for one in self._offered if one.is_at_hand]
        candidates = [
            Candidate(
                one.request.request_id,
                one.num_remaining,
                self._drafting.catching_up_seconds(one.offer.num_behind, plain_seconds, num_requests),
            )
            for one in behind
        ]
        if self._is_tried(behind):
            now = self._allot(ready, num_requests, room, plain_seconds)
            joining = worth_joining(candidates, now.speedup, everybody.speedup, plain_seconds)
            if joining or now.num_tokens:
                self._trials.succeed()
            self._catch_up(joining)
            return self._draft(now.num_tokens)
        return self._try_out(ready, candidates, plain_seconds)

    def _is_tried(self, behind: Iterable[_Offered]) -> bool:
        is_known = all(self._by_strength[one.offer.strength].num_tried >= TRIED_TOKENS for one in behind)
        return is_known and self._drafting.is_measured

    def _try_out(self, ready: Iterable[_Offered], candidates: Sequence[Candidate], plain_seconds: float) -> Drafts:
        """Draft as if everybody did, where only some can: it tells whether the others should."""
        at_hand = {one.request.request_id for one in ready}
        tried = {key: number for key, number in self._wanted.items() if key in at_hand}
        if not tried and (chosen := self._trials.choose(candidates, plain_seconds)) is not None:
            self._catch_up([chosen])
        drafts = self._draft(tried)
        self._trials.pay(self._drafter_seconds)
        return drafts

    def _catch_up(self, request_ids: Sequence[str]) -> None:
        requests = {one.request.request_id: one.request for one in self._offered}
        assert self._drafter is not None, "a drafter that failed offers nothing"
        began = self._clock()
        num_tokens = self._drafter.catch_up([requests[key] for key in request_ids]) if request_ids else 0
        seconds = self._clock() - began
        self._drafter_seconds += seconds
        if num_tokens:
            self._drafting.note_catching_up(num_tokens, seconds)

    def _draft(self, wanted: Mapping[str, int]) -> Drafts:
        """Return drafts that end before a stop token: behind one nothing counts."""
        if not wanted:
            return NO_DRAFTS
        requests = {one.request.request_id: one.request for one in self._offered}
        assert self._drafter is not None, "a drafter that failed offers nothing"
        began = self._clock()
        drafts = self._drafter.draft(wanted, requests)
        seconds = self._clock() - began
        self._drafter_seconds += seconds
        if drafts:
            self._drafting.note_drafting(len(wanted), max(map(len, drafts.values())), seconds)
        cut = {key: _before_any(draft, requests[key].stop_ids) for key, draft in drafts.items()}
        return {key: draft for key, draft in cut.items() if draft}

    def _learn(self, offered: _Offered, draft: Sequence[int]) -> None:
        """Compare a draft, or a guess, with what came."""
        by_request, common = self._by_request[offered.request.request_id], self._by_strength[offered.offer.strength]
        came = offered.request.token_ids[offered.num_tokens : offered.num_tokens + len(draft)]
        accepted = next(
            (place for place, pair in enumerate(zip(draft, came, strict=False)) if pair[0] != pair[1]), None
        )
        tried = len(came) if accepted is None else accepted + 1
        for acceptance in (by_request, common):
            if tried:
                acceptance.note(tried if accepted is None else accepted, tried)
            elif (
                offered.request.request_id not in self._wanted
            ):  # else it was tried as little as before, but not given up
                acceptance.fade()


def _before_any(draft: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int, ...]:
    place = next((place for place, token in enumerate(draft) if token in stop_ids), len(draft))
    return draft[:place]
