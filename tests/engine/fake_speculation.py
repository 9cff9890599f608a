"""Speculators that draft whether it pays or not."""

import random
from collections.abc import Sequence

from engine.request import Request
from engine.speculation.speculator import Drafter
from engine.step_plan import Drafts, SchedulerOutput
from tests.engine.fake_model import NAN_TOKEN, continuation


class RandomDrafts:
    """A speculator that is right as often as not, and at times proposes what the model cannot compute."""

    def __init__(self, seed: int, windows: Sequence[int | None] = (None,)) -> None:
        self._random = random.Random(seed)
        self._windows = windows

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        drafts = {request.request_id: self._draft(request) for request in decoding if request.may_draft}
        kept = {}
        for request_id, draft in drafts.items():
            kept[request_id] = draft[: max(0, room)]
            room -= len(draft)
        return kept

    def _draft(self, request: Request) -> tuple[int, ...]:
        draft: list[int] = []
        for _ in range(self._random.randint(0, 5)):
            right = continuation([*request.token_ids, *draft], request.params.seed, self._windows)
            draft.append(right if self._random.random() < 0.8 else self._random.randint(0, NAN_TOKEN))
        return tuple(draft)

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        assert seconds >= 0.0


class EagerSpeculation:
    """Drafts as many tokens as there are offers for, whether it pays or not."""

    def __init__(self, drafter: Drafter, max_draft_tokens: int) -> None:
        self.drafter = drafter
        self._max_draft_tokens = max_draft_tokens

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        self.drafter.retain({request.request_id for request in decoding})
        wanted: dict[str, int] = {}
        for request in decoding:
            most = min(self._max_draft_tokens, request.params.max_tokens - request.num_output_tokens - 1)
            if most > 0 and (offer := self.drafter.offer(request, most)) is not None:
                wanted[request.request_id] = offer.num_tokens
        return self.drafter.draft(wanted, {request.request_id: request for request in decoding})

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        pass
