"""The engine: requests in, finished requests out, one step at a time. Torch-free; the runner brings the model."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.admission import check_token_ids
from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.forking import Output, check_outputs, request_id_of_output
from engine.grammar import Grammar
from engine.ledger import EngineLedger
from engine.offload_policy import CopyTime
from engine.quarantine import DeviceOutOfMemory, EngineBroken, Quarantine
from engine.request import ForkGroup, GroupFigures, Request, RequestError, RequestFigures, SamplingParams
from engine.scheduler import Scheduler
from engine.speculation.speculator import NoSpeculation, Speculator
from engine.status import EngineStatus, StepSize
from engine.step_plan import NO_DRAFTS, Drafts, Sampled, SchedulerOutput, StepLimits

CALM_STEPS = 64  # without the device running out of memory, before steps may double again

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        """Return, by request id, the tokens of each share that samples, and the error of each that must end.

        The tokens are what the request would get one a step: the last is not in the draft, those before it are.

        Raises DeviceOutOfMemory when the step is too large for the device.
        """

    def take_copy_times(self) -> Sequence[CopyTime]:
        """Return what copies to the host and back took that ended since this was asked last."""

    def probe(self) -> None:
        """Run a smallest step through a free block. Raises when the model fails on that too."""

    def scrub(self, block_ids: list[int]) -> None:
        """Make the content of blocks finite."""


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
        self._runner = runner
        self._clock = clock
        cache = KVCacheManager(config, model.name, clock)
        self.scheduler = Scheduler(config, cache, clock, detokenize)
        self.ledger = EngineLedger(cache, clock)
        self._speculator = NoSpeculation() if speculator is None else speculator
        self._quarantine = Quarantine()
        self._limits = self._widest = StepLimits(config.max_num_seqs, config.token_budget)
        self.last_step: StepSize | None = None  # what `step` last computed; None where it did not get so far
        self._calm_steps = 0
        self._steps = 0
        self._output_tokens = 0
        self._preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.unfinished)

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
        check_token_ids(prompt, params, self.model.vocab_size)
        request = self._new_request(request_id, prompt, params, tenant)
        request.grammar = grammar
        self.scheduler.add(request)
        return request

    def add_group(
        self, request_id: str, prompt: Sequence[int], outputs: Sequence[Output], *, tenant: str = ""
    ) -> tuple[Request, ...]:
        """Queue a prompt of which several outputs are wanted: a request each, which end each for itself.

        Raises RequestError when one of them can never be served; none is queued then.
        """
        check_outputs(outputs)
        for output in outputs:
            check_token_ids(prompt, output.params, self.model.vocab_size)
        group = ForkGroup(GroupFigures(self._clock()))
        for index, output in enumerate(outputs):
            request = self._new_request(request_id_of_output(request_id, index), prompt, output.params, tenant)
            request.grammar = output.grammar
            request.group = group
            group.members.append(request)
        requests = tuple(group.members)
        self.scheduler.add(*requests)
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
        request = self.scheduler.abort(request_id)
        self._review_suspects()
        return request

    def step(self) -> list[Request]:
        """Schedule, run, sample, update. Returns the requests that finished.

        When the model raises, all start over at the next step. A step that is too large is made smaller; of others the
        request to blame is found and ended (`engine.quarantine`). Raises EngineBroken when none is to blame; what was
        running is then waiting.
        """
        self.last_step = None
        started = self._clock()
        apart = self._quarantine.current
        plan = self.scheduler.schedule(self._limits, apart, self._propose())
        self._preemptions += len(plan.preempted)
        if not plan.scheduled:
            assert apart is None, "a group under suspicion has somebody who can go on"
            return []
        began = self._clock()
        try:
            results = self._runner.run(plan)
        except DeviceOutOfMemory as error:
            return self._shrink(plan, error)
        except Exception as error:
            return self._isolate(plan, error)
        except BaseException:
            self._start_over(plan)
            raise
        self._note_times(plan, self._clock() - began)
        finished = self._account(plan, results)
        self._speculator.observe(plan, self._clock() - started)
        self._relax()
        self.ledger.charge(plan)
        self.last_step = StepSize(len(plan.scheduled), plan.num_tokens)
        return finished

    def _propose(self) -> Drafts:
        """Return drafts for a step in which all that run are about to decode: a step with a prefill is long as it is,
        and one with suspects has enough to prove."""
        running = self.scheduler.running[: self._limits.num_seqs]
        if self._quarantine.current is not None or any(r.num_tokens - r.num_computed_tokens > 1 for r in running):
            return NO_DRAFTS
        return self._speculator.propose(running, self._limits.num_tokens - len(running))

    def settle(self) -> None:
        """Charge the time until now as overhead, and bring what unfinished requests cost up to it, for whoever reads
        that while they are not finished."""
        self.ledger.charge_overhead()
        for request in self.scheduler.unfinished.values():
            self.scheduler.cache.settle(request)

    def _note_times(self, plan: SchedulerOutput, seconds: float) -> None:
        """Tell the offloading what a step took, and what copies took of it."""
        copies = self._runner.take_copy_times()
        alone = max(0.0, seconds - sum(copy.seconds for copy in copies))
        self.scheduler.cache.offload.note_step(plan.num_tokens, len(plan.scheduled), alone, copies)

    def _account(self, plan: SchedulerOutput, results: Mapping[str, Sampled]) -> list[Request]:
        """Take in what a step computed."""
        self._steps += 1
        requests = [share.request for share in plan.scheduled]
        suspects = _blocks_of(r for r in requests if isinstance(results.get(r.request_id), RequestError))
        num_known = sum(request.num_tokens for request in requests)
        finished = self.scheduler.update(plan, results)
        self._output_tokens += sum(request.num_tokens for request in requests) - num_known
        if suspects:
            # Those that somebody still holds are sound: whoever reads one that is not fails in the same step.
            self._runner.scrub([block_id for block_id in suspects if self.scheduler.cache.pool.is_free(block_id)])
        return finished

    def _start_over(self, plan: SchedulerOutput) -> None:
        touched = _blocks_of(share.request for share in plan.scheduled)
        self.scheduler.restart()
        self._runner.scrub(touched)
        self.ledger.charge_failed(plan)

    def _isolate(self, plan: SchedulerOutput, error: Exception) -> list[Request]:
        """Suspect the requests of a step that failed, unless the model now fails on anything. Returns the culprit."""
        logger.error("a step of %d requests failed", len(plan.scheduled), exc_info=error)
        for share in plan.scheduled:
            share.request.may_draft = share.request.may_draft and not share.draft
        try:
            self._start_over(plan)
            self._runner.probe()
        except Exception as sticky:
            raise EngineBroken(f"the model fails on any step: {sticky}") from error
        culprit = self._quarantine.accuse(plan)
        if culprit is not None:
            self.scheduler.fail(culprit, RequestError("step_failed", "the model failed on it twice, at last alone"))
        self._quarantine.review(self.scheduler.unfinished)
        self._set_suspects_apart()
        return [] if culprit is None else [culprit]

    def _shrink(self, plan: SchedulerOutput, error: DeviceOutOfMemory) -> list[Request]:
        """Halve what a step may hold. Returns the request that is too large even alone and in the smallest steps."""
        smallest = self.config.block_size
        logger.warning("%d tokens of %d requests: %s", plan.num_tokens, len(plan.scheduled), error)
        self._start_over(plan)
        self._calm_steps = 0
        num_seqs = max(1, len(plan.scheduled) // 2)
        self._limits = StepLimits(num_seqs, max(smallest, num_seqs, plan.num_tokens // 2))
        if len(plan.scheduled) > 1 or plan.num_tokens > smallest:
            return []
        request = plan.scheduled[0].request
        self.scheduler.fail(request, RequestError("out_of_memory", "the device has no memory for it, even alone"))
        self._review_suspects()
        return [request]

    def _relax(self) -> None:
        """After a step that went well: clear suspects, and let steps grow again."""
        self._review_suspects()
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS and self._limits != self._widest:
            self._calm_steps = 0
            self._limits = StepLimits(
                min(2 * self._limits.num_seqs, self._widest.num_seqs),
                min(2 * self._limits.num_tokens, self._widest.num_tokens),
            )

    def _review_suspects(self) -> None:
        if self._quarantine.review(self.scheduler.unfinished):
            self._set_suspects_apart()

    def _set_suspects_apart(self) -> None:
        group = self._quarantine.current
        if group is not None:
            self.scheduler.set_apart(group)

    def status(self) -> EngineStatus:
        pool = self.scheduler.cache.pool
        return EngineStatus(
            num_waiting=self.scheduler.num_waiting,
            num_running=self.scheduler.num_running,
            blocks_held=pool.num_held,
            blocks_cached=pool.num_cached,
            num_blocks=pool.num_blocks,
            steps=self._steps,
            computed_tokens=self.ledger.account.computed_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._preemptions,
            offload=self.scheduler.cache.offload.figures(),
        )


def _blocks_of(requests: Iterable[Request]) -> list[int]:
    return sorted({block_id for request in requests for block_id in request.held_block_ids})
