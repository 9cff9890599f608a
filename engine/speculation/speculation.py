"""Speculation that turns itself off: nothing is drafted unless steps with drafts are measured to pay."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.request import Request
from engine.speculation.acceptance import Acceptance
from engine.speculation.allotting import Chance, allot
from engine.speculation.speculator import Drafter, Offer
from engine.speculation.step_costs import StepCosts
from engine.step_plan import NO_DRAFTS, Drafts, SchedulerOutput

ASSUMED_RATE = 0.5  # of drafted tokens that come true, until some are tried
REQUEST_MEMORY_TOKENS = 20
COMMON_MEMORY_TOKENS = 200
REMEASURE_STEPS = 48  # after so many steps with drafts, one without tells again what it takes
PATIENCE_STEPS = 32  # in a row in which no draft would pay, before offers are asked for less often
RESTING_STEPS = 8  # from one look at the offers to the next, then

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Offered:
    """An offer of the step under way, and the known tokens that it follows."""

    request: Request
    offer: Offer
    num_tokens: int


class Speculation:
    """A drafter, and what decides how many of its proposals are worth their time: how often they came true, by request
    and by strength of the offer, and what steps with and without them took."""

    def __init__(self, drafter: Drafter, max_draft_tokens: int) -> None:
        """`max_draft_tokens` is per request and step."""
        self._drafter: Drafter | None = drafter  # None once it failed
        self._max_draft_tokens = max_draft_tokens
        self._costs = StepCosts()
        self._by_request: dict[str, Acceptance] = {}
        self._by_strength: defaultdict[int, Acceptance] = defaultdict(lambda: Acceptance(COMMON_MEMORY_TOKENS))
        self._offered: list[_Offered] = []
        self._steps = 0
        self._fruitless_steps = 0

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        self._offered = []
        self._steps += 1
        if self._drafter is None or self._is_resting() or not self._is_measured(len(decoding)):
            return NO_DRAFTS
        self._retain({request.request_id for request in decoding})
        self._offered = [
            _Offered(request, offer, request.num_tokens)
            for request in decoding
            if (offer := self._offer_of(request, self._drafter)) is not None
        ]
        chances = {one.request.request_id: self._chance_of(one) for one in self._offered}
        costs, number = self._costs, len(decoding)
        wanted = allot(chances, number, room, lambda num_drafted: costs.ratio(number, num_drafted))
        self._fruitless_steps = 0 if wanted else self._fruitless_steps + 1
        return self._draft(wanted, self._drafter) if wanted else NO_DRAFTS

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        drafts = {share.request.request_id: share.draft for share in plan.scheduled if share.draft}
        if all(share.num_known_tokens == 1 for share in plan.scheduled):
            self._costs.note(len(plan.scheduled), sum(map(len, drafts.values())), seconds)
        for one in self._offered:
            guess = () if one.offer.guess is None else (one.offer.guess,)
            self._learn(one, drafts.get(one.request.request_id, guess))
        self._offered = []

    def _is_resting(self) -> bool:
        return self._fruitless_steps >= PATIENCE_STEPS and self._steps % RESTING_STEPS > 0

    def _is_measured(self, num_requests: int) -> bool:
        """Whether it is known what a step without drafts takes now."""
        is_known = self._costs.plain_seconds(num_requests) is not None
        return is_known and self._costs.plain_age(num_requests) < REMEASURE_STEPS

    def _retain(self, request_ids: set[str]) -> None:
        assert self._drafter is not None, "a drafter that failed keeps nothing"
        if any(request_id not in request_ids for request_id in self._by_request):
            self._by_request = {key: value for key, value in self._by_request.items() if key in request_ids}
            self._drafter.retain(request_ids)

    def _offer_of(self, request: Request, drafter: Drafter) -> Offer | None:
        most = min(self._max_draft_tokens, request.params.max_tokens - request.num_output_tokens - 1)
        return drafter.offer(request, most) if most > 0 and request.may_draft else None

    def _chance_of(self, offered: _Offered) -> Chance:
        by_request = self._by_request.setdefault(offered.request.request_id, Acceptance(REQUEST_MEMORY_TOKENS))
        common = self._by_strength[offered.offer.strength].rate(ASSUMED_RATE)
        return Chance(offered.offer.num_tokens, by_request.rate(common))

    def _draft(self, wanted: Mapping[str, int], drafter: Drafter) -> Drafts:
        """Return drafts that end before a stop token: behind one nothing counts."""
        requests = {one.request.request_id: one.request for one in self._offered}
        try:
            drafts = drafter.draft(wanted, requests)
        except Exception:
            logger.exception("drafting failed; from now on nothing is drafted")
            self._drafter = None
            return NO_DRAFTS
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
            else:
                acceptance.fade()


def _before_any(draft: tuple[int, ...], stop_ids: frozenset[int]) -> tuple[int, ...]:
    place = next((place for place, token in enumerate(draft) if token in stop_ids), len(draft))
    return draft[:place]
