"""The engine: requests in, finished requests out, one step at a time. Torch-free; the runner brings the model."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.request import Request, RequestError, RequestFigures, SamplingParams
from engine.scheduler import Scheduler, SchedulerOutput
from engine.stopping import Detokenize


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def run(self, plan: SchedulerOutput) -> Mapping[str, int | RequestError]:
        """Return, by request id, the token of each share that samples, and the error of each that must end."""

    def scrub(self, block_ids: list[int]) -> None:
        """Make the content of blocks finite."""


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What the engine must know of a model to check requests and to name cached content."""

    name: str  # salts the block hashes
    vocab_size: int
    stop_token_ids: frozenset[int]  # end-of-sequence and end-of-turn


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot for panels and heartbeats."""

    num_waiting: int
    num_running: int
    blocks_held: int
    blocks_cached: int
    num_blocks: int
    steps: int
    computed_tokens: int  # prompt and output tokens run through the model
    output_tokens: int  # sampled, of unfinished requests too
    preemptions: int


class Engine:
    """Single-threaded: one thread calls `add`, `abort` and `step`; `status` may be read from others."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        model: ModelIdentity,
        detokenize: Detokenize,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.model = model
        self._runner = runner
        self._clock = clock
        self.scheduler = Scheduler(config, KVCacheManager(config, model.name, clock), clock, detokenize)
        self._steps = 0
        self._computed_tokens = 0
        self._output_tokens = 0
        self._preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.unfinished)

    def add(self, request_id: str, prompt: Sequence[int], params: SamplingParams, *, tenant: str = "") -> Request:
        """Queue a prompt of token ids. Raises RequestError when it can never be served; the others go on."""
        vocab_size = self.model.vocab_size
        for field, ids in (("prompt", prompt), ("stop_token_ids", params.stop_token_ids)):
            bad = next((token for token in ids if not 0 <= token < vocab_size), None)
            if bad is not None:
                raise RequestError("invalid_token", f"{field} holds token id {bad}; ids go from 0 to {vocab_size - 1}")
        now = self._clock()
        request = Request(
            request_id=request_id,
            tenant=tenant,
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=params,
            stop_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else self.model.stop_token_ids),
            figures=RequestFigures(arrived_at=now, blocks_changed_at=now),
        )
        self.scheduler.add(request)
        return request

    def abort(self, request_id: str) -> Request | None:
        """End a request as cancelled, its output so far kept; returns it, or None if it is not here (any more)."""
        return self.scheduler.abort(request_id)

    def step(self) -> list[Request]:
        """Schedule, run, sample, update. Returns the requests that finished.

        When the model raises, no request is lost: all start over at the next step, and the error is passed on.
        """
        plan = self.scheduler.schedule()
        self._preemptions += len(plan.preempted)
        if not plan.scheduled:
            return []
        try:
            tokens = self._runner.run(plan)
        except BaseException:
            touched = _blocks_of(share.request for share in plan.scheduled)
            self.scheduler.restart()
            self._runner.scrub(touched)
            raise
        self._steps += 1
        self._computed_tokens += plan.num_tokens
        self._output_tokens += sum(not isinstance(token, RequestError) for token in tokens.values())
        requests = [share.request for share in plan.scheduled]
        suspects = _blocks_of(r for r in requests if isinstance(tokens.get(r.request_id), RequestError))
        finished = self.scheduler.update(plan, tokens)
        if suspects:
            # Those that somebody still holds are sound: whoever reads one that is not fails in the same step.
            self._runner.scrub([block_id for block_id in suspects if self.scheduler.cache.pool.is_free(block_id)])
        return finished

    def status(self) -> EngineStatus:
        pool = self.scheduler.cache.pool
        return EngineStatus(
            num_waiting=self.scheduler.num_waiting,
            num_running=self.scheduler.num_running,
            blocks_held=pool.num_held,
            blocks_cached=pool.num_cached,
            num_blocks=pool.num_blocks,
            steps=self._steps,
            computed_tokens=self._computed_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._preemptions,
        )


def _blocks_of(requests: Iterable[Request]) -> list[int]:
    return sorted({block_id for request in requests for block_id in request.block_ids})
