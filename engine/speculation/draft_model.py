"""Drafts from a second, smaller model, which runs ahead over a KV cache of its own."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.request import Request, RequestError, RequestFigures
from engine.speculation.speculator import Offer
from engine.step_plan import Drafts, ScheduledRequest, SchedulerOutput
from engine.stepping import Runner


@dataclass(eq=False, slots=True)
class _Follower:
    """A request's double in the draft model: the same known tokens, then those that are drafted."""

    request: Request
    num_known: int = 0
    wanted: int = 0  # drafted tokens that are still to come in this step
    is_broken: bool = False  # the draft model failed on it; it drafts no more
    num_hit: int = 0  # tokens that others' blocks have for it, before it has any itself
    looked_at: int | None = None  # the step of the draft model before which `num_hit` was found

    @property
    def drafted(self) -> tuple[int, ...]:
        return tuple(self.request.token_ids[self.num_known :])

    @property
    def num_to_compute(self) -> int:
        """Tokens until it drafts one; where none is wanted, all but the last known one, whose logits would be one."""
        end = self.request.num_tokens if self.wanted else self.num_known - 1
        return max(0, end - self.request.num_computed_tokens)

    def follow(self, token_ids: list[int]) -> None:
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
        self._steps = 0

    def offer(self, request: Request, most: int) -> Offer | None:
        follower = self._following(request)
        most = min(most, self._max_model_len - request.num_tokens)
        if follower.is_broken or most < 1:
            return None
        return Offer(most, num_behind=request.num_tokens - self._num_computed(follower))

    def catch_up(self, requests: Sequence[Request]) -> int:
        return self._advance(map(self._following, requests))

    def draft(self, wanted: Mapping[str, int], requests: Mapping[str, Request]) -> Drafts:
        followers = [self._following(requests[key]) for key in wanted]
        for follower in followers:
            follower.wanted = wanted[follower.request.request_id]
        while going_on := [follower for follower in followers if follower.wanted]:
            self._advance(going_on)
        return {follower.request.request_id: follower.drafted for follower in followers if follower.drafted}

    def retain(self, request_ids: Collection[str]) -> None:
        for gone in [request_id for request_id in self._followers if request_id not in request_ids]:
            self._cache.release(self._followers.pop(gone).request)

    def _following(self, request: Request) -> _Follower:
        """Return the request's follower, which knows what it knows."""
        follower = self._followers.get(request.request_id)
        if follower is None:
            follower = self._followers[request.request_id] = _Follower(_double(request))
        follower.follow(request.token_ids)
        return follower

    def _num_computed(self, follower: _Follower) -> int:
        """Return how many of a follower's tokens are computed, or were for another."""
        if follower.request.block_tables:
            return follower.request.num_computed_tokens
        if follower.looked_at != self._steps:
            follower.looked_at, follower.num_hit = self._steps, self._cache.num_hit(follower.request)
        return follower.num_hit

    def _advance(self, followers: Iterable[_Follower]) -> int:
        """Run one step, of as many followers and tokens as the budget allows; those that catch up draft a token if one
        is wanted. Returns the number of tokens computed."""
        budget = self._token_budget
        shares: dict[str, ScheduledRequest] = {}
        stepping: list[_Follower] = []
        for follower in followers:
            count = self._make_room(follower, budget) if budget else 0
            if count:
                double = follower.request
                start = double.num_computed_tokens
                # Whoever is admitted after it may share them: it computes after it, too.
                self._cache.cache_blocks(double, min(start + count, follower.num_known))
                shares[double.request_id] = ScheduledRequest(double, start, count)
                stepping.append(follower)
                budget -= count
        num_tokens = self._token_budget - budget
        if not num_tokens:
            return 0
        self._steps += 1
        plan = SchedulerOutput(tuple(shares.values()), num_tokens, (), self._cache.take_transfers())
        results = self._runner.launch(plan).results()
        for follower in stepping:
            share = shares[follower.request.request_id]
            self._take_in(follower, share, results.get(follower.request.request_id))
        return num_tokens

    def _make_room(self, follower: _Follower, budget: int) -> int:
        """Return how many tokens of a follower to compute now, in blocks that it has then; without room it drafts no
        more in this step."""
        double = follower.request
        if double.block_tables or self._cache.admit(double):
            count = min(follower.num_to_compute, budget)
            if self._cache.grow(double, double.num_computed_tokens + count):
                return count
        follower.wanted = 0
        return 0

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
