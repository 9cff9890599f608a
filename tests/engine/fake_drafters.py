"""A drafter on a fake clock that knows what comes, and how long a set of requests takes with it."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from engine.request import Request, SamplingParams
from engine.speculation.speculation import Speculation
from engine.speculation.speculator import Offer
from engine.step_plan import Drafts
from tests.engine.fake_model import generate_alone
from tests.engine.fakes import FakeClock, Harness, assert_as_alone, make_config

CATCHING_UP_TOKENS = 32  # that a step of the drafter's own holds


@dataclass
class OracleDrafter:
    """Drafts the right tokens, each with a probability. Where computing a prompt takes time, it is behind at first."""

    rate: float
    round_seconds: float = 0.0  # for a token of each request
    prompt_token_seconds: float = 0.0
    clock: FakeClock = field(default_factory=FakeClock)
    error: Exception | None = None
    fails_at: str = "draft"  # which of its methods raises the error
    offered: int = 0
    drafted: int = 0
    seconds: float = 0.0  # that it took
    caught_up: dict[str, float] = field(default_factory=dict)  # when it began to compute a prompt, by request id
    _chance: random.Random = field(default_factory=lambda: random.Random(0))
    _right: dict[str, list[int]] = field(default_factory=dict)  # whole outputs by request id
    _num_computed: dict[str, int] = field(default_factory=dict)

    def _may_fail(self, method: str) -> None:
        if self.error is not None and self.fails_at == method:
            raise self.error

    def offer(self, request: Request, most: int) -> Offer | None:
        self._may_fail("offer")
        self.offered += 1
        return Offer(most, num_behind=self._num_behind(request))

    def catch_up(self, requests: Sequence[Request]) -> int:
        self._may_fail("catch_up")
        left = CATCHING_UP_TOKENS
        for request in requests:
            self.caught_up.setdefault(request.request_id, self.clock.now)
            left -= self._compute(request, min(left, self._num_behind(request)))
        return CATCHING_UP_TOKENS - left

    def draft(self, wanted: Mapping[str, int], requests: Mapping[str, Request]) -> Drafts:
        self._may_fail("draft")
        self._pass(self.round_seconds * max(wanted.values()))
        drafts = {}
        for key, number in wanted.items():
            request = requests[key]
            self._compute(request, self._num_behind(request))
            if key not in self._right:
                self._right[key], _ = generate_alone(request.token_ids[: request.num_prompt_tokens], request.params)
            coming = self._right[key][request.num_output_tokens :][:number]
            drafts[key] = tuple(token if self._chance.random() < self.rate else 1 + token % 9 for token in coming)
            self.drafted += number
        return drafts

    def retain(self, request_ids: Collection[str]) -> None:
        self._may_fail("retain")
        self._num_computed = {key: value for key, value in self._num_computed.items() if key in request_ids}

    def _num_behind(self, request: Request) -> int:
        return request.num_tokens - self._num_computed.get(request.request_id, 0) if self.prompt_token_seconds else 0

    def _compute(self, request: Request, num_tokens: int) -> int:
        self._num_computed[request.request_id] = self._num_computed.get(request.request_id, 0) + num_tokens
        self._pass(self.prompt_token_seconds * num_tokens)
        return num_tokens

    def _pass(self, seconds: float) -> None:
        self.clock.now += seconds
        self.seconds += seconds


def timed_harness(drafter: OracleDrafter | None, per_token: float, *, num_seqs: int = 8) -> Harness:
    """Return an engine whose steps take 1 s and `per_token` more for each token, beside what the drafter takes."""
    config = make_config(num_blocks=100 * num_seqs, max_model_len=1024, token_budget=256, max_num_seqs=num_seqs)
    clock = FakeClock() if drafter is None else drafter.clock
    harness = Harness(config, None if drafter is None else Speculation(drafter, 4, clock), clock)

    def pass_time() -> None:
        clock.now += 1.0 + per_token * harness.runner.plans[-1].num_tokens

    harness.runner.on_run = pass_time
    return harness


def seconds_of(
    drafter: OracleDrafter | None,
    per_token: float,
    *,
    num_requests: int = 1,
    num_tokens: int = 300,
    prompt_tokens: int = 3,
    num_seqs: int = 8,
) -> float:
    """Return the time that some requests take, which all wait from the beginning."""
    harness = timed_harness(drafter, per_token, num_seqs=num_seqs)
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    chance = random.Random(1)
    prompts = [[1 + chance.randrange(20) for _ in range(prompt_tokens)] for _ in range(num_requests)]
    requests = [harness.add(str(index), prompt, params) for index, prompt in enumerate(prompts)]
    began = harness.clock.now
    harness.run(max_steps=100_000)
    for request in requests:
        assert_as_alone(request)
    return harness.clock.now - began
