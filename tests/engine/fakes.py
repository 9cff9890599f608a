"""An engine on a fake model, and what its tests add to it and expect of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config import EngineConfig
from engine.engine import Engine
from engine.grammar import Grammar
from engine.request import Request, RequestFigures, SamplingParams
from engine.speculation.speculator import Speculator
from tests.engine.fake_model import MODEL, detokenize, generate_alone
from tests.engine.fake_runner import FakeRunner


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_config(**changes: Any) -> EngineConfig:
    """Return a small configuration."""
    values: dict[str, Any] = {
        "num_blocks": 32,
        "max_model_len": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "token_budget": 16,
    }
    return EngineConfig(**(values | changes))


@dataclass
class Harness:
    """An engine on the fake runner, which checks its integrity after every step."""

    config: EngineConfig
    speculator: Speculator | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    runner: FakeRunner = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.config)
        self.engine = Engine(self.config, self.runner, MODEL, detokenize, self.clock, self.speculator)

    def add(
        self,
        request_id: str,
        prompt: Iterable[int],
        params: SamplingParams,
        tenant: str = "",
        grammar: Grammar | None = None,
    ) -> Request:
        return self.engine.add(request_id, list(prompt), params, tenant=tenant, grammar=grammar)

    def step(self) -> list[Request]:
        finished = self.engine.step()
        self.engine.lineup.check_integrity()
        return finished

    def run(self, max_steps: int = 2000) -> dict[str, Request]:
        """Step until nothing is left; returns what finished, by id."""
        finished: dict[str, Request] = {}
        for _ in range(max_steps):
            if not self.engine.has_work:
                return finished
            finished |= {request.request_id: request for request in self.step()}
        raise AssertionError(f"unfinished after {max_steps} steps: {sorted(self.engine.lineup.unfinished)}")

    def assert_idle(self) -> None:
        """Every block is back and nothing waits."""
        status = self.engine.status()
        assert (status.num_waiting, status.num_running, status.blocks_held) == (0, 0, 0)


def make_harness(**changes: Any) -> Harness:
    """Return an engine with a small configuration."""
    return Harness(make_config(**changes))


def make_request(
    prompt: Iterable[int] = (1, 2, 3),
    output: Iterable[int] = (),
    *,
    request_id: str = "r",
    tenant: str = "",
    **params: Any,
) -> Request:
    """Return a request that already has some output, outside any engine."""
    token_ids = list(prompt)
    num_prompt_tokens = len(token_ids)
    sampling = SamplingParams(**({"max_tokens": 16} | params))
    return Request(
        request_id=request_id,
        tenant=tenant,
        token_ids=[*token_ids, *output],
        num_prompt_tokens=num_prompt_tokens,
        params=sampling,
        stop_ids=sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else MODEL.stop_token_ids),
        figures=RequestFigures(arrived_at=0.0),
    )


def assert_as_alone(request: Request, windows: Sequence[int | None] = (None,)) -> None:
    """A finished request's output and reason are those it has when it runs alone."""
    prompt = request.token_ids[: request.num_prompt_tokens]
    alone = generate_alone(prompt, request.params, windows, request.grammar)
    assert (request.output_token_ids, request.finish_reason) == alone
