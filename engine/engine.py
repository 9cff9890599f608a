"""The engine: requests in, finished requests out, one step at a time. Torch-free; the runner brings the model."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.admission import check_token_ids
from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.forking import Output, check_outputs, request_id_of_output
from engine.grammar import Grammar
from engine.ledger import EngineLedger
from engine.lineup import Lineup
from engine.offload_policy import CopyTime
from engine.quarantine import EngineBroken
from engine.recovering import Recovery, blocks_of
from engine.request import FinishReason, ForkGroup, GroupFigures, Request, RequestError, RequestFigures, SamplingParams
from engine.scheduler import Scheduler
from engine.speculation.speculator import NoSpeculation, Speculator
from engine.status import EngineStatus, StepSize
from engine.step_plan import NO_DRAFTS, Drafts, Launched, Sampled, SchedulerOutput

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """What the engine needs of a model runner."""

    def launch(self, plan: SchedulerOutput) -> Launched:
        """Begin a step, and wait for it or not. Steps read and write blocks in the order in which they are launched.

        A share's tokens are what the request would get one a step: the last is not in the draft, those before it are.
        Where the plan is ahead, tokens that are pending are those of the step launched before it.

        Raises DeviceOutOfMemory, at once or with the results, when the step is too large for the device.
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
        self.lineup = Lineup(config, cache, clock)
        self.scheduler = Scheduler(config, cache, self.lineup, clock, detokenize)
        self.ledger = EngineLedger(cache, clock)
        self._recovery = Recovery(config, self.lineup, runner, self.ledger)
        self._speculator = NoSpeculation() if speculator is None else speculator
        self._runs_ahead = config.async_scheduling and speculator is None  # whose drafts begin with the newest token
        self._under_way: _StepUnderWay | None = None
        self._ended_before: list[Request] = []  # by steps that `step` did not return of
        self._broken: EngineBroken | None = None
        self._finished_at = clock()  # when the last step was
        self.last_step: StepSize | None = None  # what `step` last computed; None where it did not get so far
        self._steps = 0
        self._output_tokens = 0
        self._preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.lineup.unfinished or self._ended_before or self._under_way is not None)

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
            check_token_ids(prompt, output.params, self.model.vocab_size)
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
        self._await_step()
        request = self.lineup.unfinished.get(request_id)
        if request is not None:
            self.lineup.finish(request, FinishReason.CANCELLED)
        self._recovery.review()
        return request

    def step(self) -> list[Request]:
        """Schedule, run, sample, update. Returns the requests that finished.

        With asynchronous scheduling, the step that it waits for was launched before, and the next one is launched
        first, so that the device goes on meanwhile.

        When the model raises, all start over at the next step. A step that is too large is made smaller; of others the
        request to blame is found and ended (`engine.recovering`). Raises EngineBroken when none is to blame; what was
        running is then waiting.
        """
        self.last_step = None
        if self._broken is not None:
            raise self._broken
        ended, self._ended_before = self._ended_before, []
        if self._under_way is None:
            ended += self._begin()
        if self._under_way is not None:
            ended += self._go_on()
        return ended

    def _begin(self) -> list[Request]:
        """Launch a step, where there is anything to do. Returns whom it ends where it fails."""
        apart = self._recovery.suspects
        began = self._clock()
        plan = self.scheduler.schedule(self._recovery.limits, apart, self._propose())
        self._preemptions += len(plan.preempted)
        if not plan.scheduled:
            assert apart is None, "a group under suspicion has somebody who can go on"
            return []
        try:
            self._launch(plan, began)
        except BaseException as error:
            return self._recovery.recover(plan, error, self._touched_by(plan))
        return []

    def _go_on(self) -> list[Request]:
        """Launch the step after the one under way, if that can be, and then finish the latter. Returns who ended."""
        current = self._take_step()
        plan = None
        began = self._clock()
        if self._runs_ahead and self._recovery.suspects is None:
            plan = self.scheduler.schedule_ahead(current.plan, self._recovery.limits)
        if plan is not None:
            try:
                self._launch(plan, began)
            except BaseException as error:
                ended = self._finish_step(current)
                return ended + self._recovery.recover(plan.of_those_running(), error, self._touched_by(plan))
        return self._finish_step(current)

    def _launch(self, plan: SchedulerOutput, began: float) -> None:
        launched_at = self._clock()
        launched = self._runner.launch(plan)
        self.scheduler.launched(plan)
        self._under_way = _StepUnderWay(plan, launched, began, launched_at)

    def _take_step(self) -> "_StepUnderWay":
        step, self._under_way = self._under_way, None
        assert step is not None, "a step is under way"
        return step

    def _finish_step(self, step: "_StepUnderWay") -> list[Request]:
        """Wait for a step and take in what it computed. Returns who ended.

        Where a request failed, the step launched after it is finished too, before anybody counts on what it wrote.
        """
        try:
            results = step.launched.results()
        except BaseException as error:
            plans = [step.plan]
            if self._under_way is not None:
                plans.append(self._forsake())
            return self._recovery.recover(step.plan.of_those_running(), error, self._touched_by(*plans))
        plan = step.plan.of_those_running()
        self._note_times(plan, step)
        finished = self._account(plan, results)
        self._speculator.observe(plan, self._clock() - step.began)
        self._recovery.note_success()
        self.ledger.charge(plan)
        self.last_step = StepSize(len(plan.scheduled), plan.num_tokens)
        if self._under_way is not None and any(isinstance(result, RequestError) for result in results.values()):
            finished += self._finish_step(self._take_step())
        return finished

    def _forsake(self) -> SchedulerOutput:
        """Wait for a step whose results are of no use, and return its plan."""
        step = self._take_step()
        try:
            step.launched.results()
        except Exception:  # it goes wrong as the one before it did
            logger.info("a step launched ahead failed too", exc_info=True)
        return step.plan

    def _await_step(self) -> None:
        """Finish the step under way, before what it counts on is changed; whom it ends, the next `step` returns."""
        if self._under_way is None:
            return
        try:
            self._ended_before += self._finish_step(self._take_step())
        except EngineBroken as error:
            self._broken = error

    def _touched_by(self, *plans: SchedulerOutput) -> Sequence[int]:
        """Return the blocks that steps may have written: all, where some may have been given back since."""
        if any(plan.is_ahead for plan in plans):
            return range(self.config.num_blocks)
        return blocks_of(request for plan in plans for request in plan.requests)

    def _propose(self) -> Drafts:
        """Return drafts for a step in which all that run are about to decode: a step with a prefill is long as it is,
        and one with suspects has enough to prove."""
        limits = self._recovery.limits
        running = self.lineup.running[: limits.num_seqs]
        if self._recovery.suspects is not None or any(r.num_tokens - r.num_computed_tokens > 1 for r in running):
            return NO_DRAFTS
        return self._speculator.propose(running, limits.num_tokens - len(running))

    def settle(self) -> None:
        """Charge the time until now as overhead, and bring what unfinished requests cost up to it, for whoever reads
        that while they are not finished."""
        self._await_step()
        self.ledger.charge_overhead()
        for request in self.lineup.unfinished.values():
            self.scheduler.cache.settle(request)

    def _note_times(self, plan: SchedulerOutput, step: "_StepUnderWay") -> None:
        """Tell the offloading what a step took, and what copies took of it."""
        now = self._clock()
        seconds = now - max(step.launched_at, self._finished_at)
        self._finished_at = now
        copies = self._runner.take_copy_times()
        alone = max(0.0, seconds - sum(copy.seconds for copy in copies))
        self.scheduler.cache.offload.note_step(plan.num_tokens, len(plan.scheduled), alone, copies)

    def _account(self, plan: SchedulerOutput, results: Mapping[str, Sampled]) -> list[Request]:
        """Take in what a step computed."""
        self._steps += 1
        suspects = blocks_of(r for r in plan.requests if isinstance(results.get(r.request_id), RequestError))
        num_known = sum(request.num_tokens for request in plan.requests)
        finished = self.scheduler.update(plan, results)
        self._output_tokens += sum(request.num_tokens for request in plan.requests) - num_known
        if suspects:
            # Those that somebody still holds are sound: whoever reads one that is not fails in the same step.
            self._runner.scrub([block_id for block_id in suspects if self.scheduler.cache.pool.is_free(block_id)])
        return finished

    def status(self) -> EngineStatus:
        pool = self.scheduler.cache.pool
        return EngineStatus(
            num_waiting=self.lineup.num_waiting,
            num_running=self.lineup.num_running,
            blocks_held=pool.num_held,
            blocks_cached=pool.num_cached,
            num_blocks=pool.num_blocks,
            steps=self._steps,
            computed_tokens=self.ledger.account.computed_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._preemptions,
            offload=self.scheduler.cache.offload.figures(),
        )


@dataclass(frozen=True, slots=True)
class _StepUnderWay:
    """A step that was launched. Times are the clock's."""

    plan: SchedulerOutput
    launched: Launched
    began: float  # when it was planned
    launched_at: float
