"""Drafts from a second, smaller model, which runs ahead over a KV cache of its own."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.engine import Runner
from engine.request import Request, RequestError, RequestFigures
from engine.speculation.speculator import Offer
from engine.step_plan import Drafts, ScheduledRequest, SchedulerOutput


@dataclass(eq=False, slots=True)
class _Follower:
    """A request's double in the draft model: the same known tokens, then those that are drafted."""

    request: Request
    num_known: int = 0
    wanted: int = 0  # drafted tokens that are still to come in this step
    is_broken: bool = False  # the draft model failed on it; it drafts no more

    @property
    def drafted(self) -> tuple[int, ...]:
        return tuple(self.request.token_ids[self.num_known :])

    def catch_up(self, token_ids: list[int]) -> None:
        """Know what the request knows. KV of what was drafted and came true stays, but for the last token's: where less
        was checked than drafted, and came true, its logits are still wanted."""
        old = self.request.token_ids
        right = self.num_known
        while right < min(len(old), len(token_ids)) and old[right] == token_ids[right]:
            right += 1
        old[self.num_known :] = token_ids[self.num_known :]
        self.request.num_computed_tokens = min(self.request.num_computed_tokens, right, len(token_ids) - 1)
        self.num_known = len(token_ids)


class DraftModel:
    """Runs a draft model by the same means as the engine its model: followers share prefixes and hold blocks.

    It samples as each request does, with the same uniform number for the same position: where both models agree on what
    is likely, they mostly choose the same token. Penalties and grammars are left to the engine's model.
    """

    def __init__(
        self, runner: Runner, config: EngineConfig, model_name: str, vocab_size: int, clock: Callable[[], float]
    ) -> None:
        """`config` is of the draft model's cache, `vocab_size` of the engine's model: no other tokens are drafted."""
        self._runner = runner
        self._cache = KVCacheManager(config, model_name, clock)
        self._token_budget = config.token_budget
        self._max_model_len = config.max_model_len
        self._vocab_size = vocab_size
        self._followers: dict[str, _Follower] = {}

    def offer(self, request: Request, most: int) -> Offer | None:
        follower = self._followers.get(request.request_id)
        is_broken = follower is not None and follower.is_broken
        most = min(most, self._max_model_len - request.num_tokens)
        return None if is_broken or most < 1 else Offer(most)

    def draft(self, wanted: Mapping[str, int], requests: Mapping[str, Request]) -> Drafts:
        followers = [follower for key in wanted if (follower := self._prepare(requests[key], wanted[key])) is not None]
        while going_on := [follower for follower in followers if follower.wanted]:
            self._advance(going_on)
        return {follower.request.request_id: follower.drafted for follower in followers if follower.drafted}

    def retain(self, request_ids: Collection[str]) -> None:
        for gone in [request_id for request_id in self._followers if request_id not in request_ids]:
            self._cache.release(self._followers.pop(gone).request)

    def _prepare(self, request: Request, wanted: int) -> _Follower | None:
        """Return the request's follower, with blocks for what it is to draft; None where there are none."""
        follower = self._followers.get(request.request_id)
        if follower is None:
            follower = self._followers[request.request_id] = _Follower(_double(request))
        follower.catch_up(request.token_ids)
        double = follower.request
        if not double.block_tables and not self._cache.admit(double):
            return None
        if not self._cache.grow(double, follower.num_known + wanted - 1):
            return None
        # Whoever is prepared after it may share them: it computes after it, too.
        self._cache.cache_blocks(double, follower.num_known)
        follower.wanted = wanted
        return follower

    def _advance(self, followers: Iterable[_Follower]) -> None:
        """Run one step, of as many followers and tokens as the budget allows; those that catch up draft a token."""
        budget = self._token_budget
        shares: dict[str, ScheduledRequest] = {}
        stepping: list[_Follower] = []
        for follower in followers:
            double = follower.request
            count = min(double.num_tokens - double.num_computed_tokens, budget)
            if count:
                shares[double.request_id] = ScheduledRequest(double, double.num_computed_tokens, count)
                stepping.append(follower)
                budget -= count
        plan = SchedulerOutput(tuple(shares.values()), self._token_budget - budget, ())
        results = self._runner.run(plan)
        for follower in stepping:
            share = shares[follower.request.request_id]
            self._take_in(follower, share, results.get(follower.request.request_id))

    def _take_in(
        self, follower: _Follower, share: ScheduledRequest, result: tuple[int, ...] | RequestError | None
    ) -> None:
        double = follower.request
        if isinstance(result, RequestError):
            self._break(follower)
            return
        double.num_computed_tokens += share.num_scheduled_tokens
        if result is None:
            return
        if result[0] >= self._vocab_size:
            follower.wanted = 0
            return
        double.token_ids.extend(result)
        follower.wanted = 0 if result[0] in double.stop_ids else follower.wanted - 1

    def _break(self, follower: _Follower) -> None:
        """Draft no more for a request on which the draft model fails. Nothing reads its blocks' content again."""
        follower.is_broken = True
        follower.wanted = 0
        double = follower.request
        del double.token_ids[follower.num_known :]
        blocks = list(double.held_block_ids)
        self._cache.forget(blocks)
        self._cache.release(double)
        self._runner.scrub([block_id for block_id in blocks if self._cache.pool.is_free(block_id)])

    def check_integrity(self) -> None:
        """Raise AssertionError unless the followers' blocks agree with the pool."""
        self._cache.check_integrity(follower.request for follower in self._followers.values())


def _double(request: Request) -> Request:
    """Return a request of the same prompt that samples the same way, as far as the tokens before do not matter."""
    params = replace(
        request.params,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        min_tokens=0,
        logprobs=None,
        prompt_logprobs=None,
    )
    return Request(
        request_id=request.request_id,
        tenant=request.tenant,
        token_ids=[],
        num_prompt_tokens=request.num_prompt_tokens,
        params=params,
        stop_ids=request.stop_ids,
        figures=RequestFigures(arrived_at=0.0),
    )
