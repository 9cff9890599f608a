"""The engine: requests in, finished requests out, one step at a time. Torch-free; the runner brings the model."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.admission import check_content
from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.forking import Output, check_outputs, request_id_of_output
from engine.grammar import Grammar
from engine.ledger import EngineLedger
from engine.lineup import Lineup
from engine.request import FinishReason, ForkGroup, GroupFigures, Request, RequestFigures, SamplingParams
from engine.scheduler import Scheduler
from engine.speculation.speculator import NoSpeculation, Speculator
from engine.status import EngineStatus, StepSize
from engine.stepping import Runner, Stepper

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What the engine must know of a model to check requests and to name cached content."""

    name: str  # salts the block hashes
    vocab_size: int
    stop_token_ids: frozenset[int]  # end-of-sequence and end-of-turn


class Engine:
    """Single-threaded: one thread calls `add`, `abort` and `step`; `status` may be read from others."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        model: ModelIdentity,
        detokenize: Detokenizer,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
    ) -> None:
        """`clock` returns seconds. Without a speculator nothing is drafted."""
        self.config = config
        self.model = model
        self._clock = clock
        cache = KVCacheManager(config, model.name, clock)
        self.lineup = Lineup(config, cache, clock)
        self.scheduler = Scheduler(config, cache, self.lineup, clock, detokenize)
        self.ledger = EngineLedger(cache, clock)
        self._stepper = Stepper(
            config,
            self.scheduler,
            self.lineup,
            runner,
            self.ledger,
            NoSpeculation() if speculator is None else speculator,
            clock,
            runs_ahead=config.async_scheduling and speculator is None,  # whose drafts begin with the newest token
        )

    @property
    def has_work(self) -> bool:
        return bool(self.lineup.unfinished) or self._stepper.has_work

    @property
    def last_step(self) -> StepSize | None:
        """What `step` last computed; None where it did not get so far."""
        return self._stepper.last_size

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "",
        grammar: Grammar | None = None,
    ) -> Request:
        """Queue a prompt of token ids. Raises RequestError when it can never be served; the others go on."""
        check_content(prompt, params, self.model.vocab_size)
        request = self._new_request(request_id, prompt, params, tenant)
        request.grammar = grammar
        self.lineup.add(request)
        return request

    def add_group(
        self, request_id: str, prompt: Sequence[int], outputs: Sequence[Output], *, tenant: str = ""
    ) -> tuple[Request, ...]:
        """Queue a prompt of which several outputs are wanted: a request each, which end each for itself.

        Raises RequestError when one of them can never be served; none is queued then.
        """
        check_outputs(outputs)
        for output in outputs:
            check_content(prompt, output.params, self.model.vocab_size)
        group = ForkGroup(GroupFigures(self._clock()))
        for index, output in enumerate(outputs):
            request = self._new_request(request_id_of_output(request_id, index), prompt, output.params, tenant)
            request.grammar = output.grammar
            request.group = group
            group.members.append(request)
        requests = tuple(group.members)
        self.lineup.add(*requests)
        return requests

    def _new_request(self, request_id: str, prompt: Sequence[int], params: SamplingParams, tenant: str) -> Request:
        now = self._clock()
        return Request(
            request_id=request_id,
            tenant=tenant,
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            params=params,
            stop_ids=params.stop_token_ids | (frozenset() if params.ignore_eos else self.model.stop_token_ids),
            figures=RequestFigures(arrived_at=now, blocks_changed_at=now),
        )

    def abort(self, request_id: str) -> Request | None:
        """End a request as cancelled, its output so far kept; returns it, or None if it is not here (any more)."""
        if request_id not in self.lineup.unfinished:
            return None
        self._stepper.wait()
        request = self.lineup.unfinished.get(request_id)
        if request is not None:
            self.lineup.finish(request, FinishReason.CANCELLED)
            self._stepper.recovery.review()
        return request

    def step(self) -> list[Request]:
        """Schedule, run, sample, update. Returns the requests that finished.

        With asynchronous scheduling, the step that it waits for was launched before, and the next one is launched
        first, so that the device goes on meanwhile.

        When the model raises, all start over at the next step. A step that is too large is made smaller; of others the
        request to blame is found and ended (`engine.recovering`). Raises EngineBroken when none is to blame; what was
        running is then waiting.
        """
        self._stepper.step()
        return self._stepper.take_ended()

    def settle(self) -> None:
        """Finish the step under way, charge the time until now as overhead, and bring what unfinished requests cost up
        to it, for whoever reads that while they are not finished. Who ended meanwhile, the next `step` returns, or
        `take_ended` where there is to be none."""
        self._stepper.wait()
        self.ledger.charge_overhead()
        for request in self.lineup.unfinished.values():
            self.scheduler.cache.settle(request)

    def take_ended(self) -> list[Request]:
        """Return the requests that finished and that no `step` has returned."""
        return self._stepper.take_ended()

    def status(self) -> EngineStatus:
        pool = self.scheduler.cache.pool
        return EngineStatus(
            num_waiting=self.lineup.num_waiting,
            num_running=self.lineup.num_running,
            blocks_held=pool.num_held,
            blocks_cached=pool.num_cached,
            num_blocks=pool.num_blocks,
            steps=self._stepper.num_steps,
            computed_tokens=self.ledger.account.computed_tokens,
            output_tokens=self._stepper.num_output_tokens,
            preemptions=self._stepper.num_preempted,
            offload=self.scheduler.cache.offload.figures(),
        )
