"""The engine's steps: each is planned, launched, waited for and taken in; the next one may be launched in between."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import EngineConfig
from engine.ledger import EngineLedger
from engine.lineup import Lineup
from engine.offload_policy import CopyTime
from engine.quarantine import EngineBroken
from engine.recovering import Mender, Recovery, blocks_of
from engine.request import Request, RequestError, RequestState
from engine.scheduler import Scheduler
from engine.speculation.speculator import Speculator
from engine.status import StepSize
from engine.step_plan import NO_DRAFTS, Drafts, Launched, Sampled, SchedulerOutput

logger = logging.getLogger(__name__)


class Runner(Mender, Protocol):
    """What the engine needs of a model runner."""

    def launch(self, plan: SchedulerOutput) -> Launched:
        """Begin a step, and wait for it or not. Steps read and write blocks in the order in which they are launched.

        A share's tokens are what the request would get one a step: the last is not in the draft, those before it are.
        Where the plan is ahead, tokens that are pending are those of the step launched before it, which has chosen
        them; where it chooses late, its own are left to `Launched.choose`.

        Raises DeviceOutOfMemory, at once or with the results, when the step is too large for the device.
        """

    def take_copy_times(self) -> Sequence[CopyTime]:
        """Return what copies to the host and back took that ended since this was asked last."""


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    """A step that was launched. Times are the clock's."""

    plan: SchedulerOutput
    launched: Launched
    began: float  # when it was planned
    launched_at: float


class Stepper:
    """Takes steps, one after the other or, with `runs_ahead`, each launched while the one before it is under way.

    Who has ended is in `ended`, until `take_ended`: whatever goes wrong later, that is known.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        lineup: Lineup,
        runner: Runner,
        ledger: EngineLedger,
        speculator: Speculator,
        clock: Callable[[], float],
        *,
        runs_ahead: bool,
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._lineup = lineup
        self._runner = runner
        self._ledger = ledger
        self._speculator = speculator
        self._clock = clock
        self._runs_ahead = runs_ahead
        self.recovery = Recovery(config, lineup, runner, ledger)
        self._under_way: StepUnderWay | None = None
        self._broken: EngineBroken | None = None
        self._finished_at = clock()  # when the last step was
        self.ended: list[Request] = []
        self.last_size: StepSize | None = None  # of what `step` last took in; None where it did not get so far
        self.num_steps = 0
        self.num_output_tokens = 0
        self.num_preempted = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do or tell anything, apart from requests that are unfinished."""
        return bool(self.ended) or self._under_way is not None

    def take_ended(self) -> list[Request]:
        """Return who has ended since this was asked last."""
        ended, self.ended = self.ended, []
        return ended

    def step(self) -> None:
        """Take in a step: one that is under way, after the next one is launched, or else a new one.

        Raises EngineBroken, but only once nobody's end is left to be told.
        """
        self.last_size = None
        if self._broken is not None and not self.ended:
            raise self._broken
        if self._broken is None:
            try:
                self._advance()
            except EngineBroken as error:
                if not self.ended:
                    raise
                self._broken = error

    def wait(self) -> None:
        """Finish the step under way, before what it counts on is changed. What that raises, the next step says."""
        if self._under_way is None:
            return
        try:
            self._finish(self._take())
        except EngineBroken as error:
            self._broken = error
        except Exception as error:
            logger.exception("a step could not be finished")
            self._broken = EngineBroken(str(error))

    def _advance(self) -> None:
        if self._under_way is None:
            self._begin()
        if self._under_way is not None:
            self._go_on()

    def _begin(self) -> None:
        """Launch a step, where there is anything to do."""
        apart = self.recovery.suspects
        began = self._clock()
        plan = self._scheduler.schedule(self.recovery.limits, apart, self._propose())
        self.num_preempted += len(plan.preempted)
        if not plan.scheduled:
            assert apart is None, "a group under suspicion has somebody who can go on"
            return
        try:
            self._launch(plan, began)
        except BaseException as error:
            self.ended += self.recovery.recover(plan, error, self._touched_by(plan))
        self._choose()

    def _go_on(self) -> None:
        """Launch the step after the one under way, if that can be, and then finish the latter, so that the former can
        choose its tokens."""
        current = self._take()
        began = self._clock()
        plan = None
        if self._runs_ahead and self.recovery.may_run_ahead:
            plan = self._scheduler.schedule_ahead(current.plan, self.recovery.limits)
        failure: BaseException | None = None
        if plan is not None:
            try:
                self._launch(plan, began)
            except BaseException as error:
                failure = error
        self._finish(current)
        if plan is not None and failure is not None:
            self.ended += self.recovery.recover(plan, failure, self._touched_by(plan))

    def _launch(self, plan: SchedulerOutput, began: float) -> None:
        launched_at = self._clock()
        launched = self._runner.launch(plan)
        self._scheduler.launched(plan)
        self._under_way = StepUnderWay(plan, launched, began, launched_at)

    def _choose(self) -> None:
        """Let the step under way, if there is one, choose its tokens: all those before them are known."""
        step = self._under_way
        if step is None:
            return
        try:
            step.launched.choose()
        except BaseException as error:
            self._under_way = None
            self.ended += self.recovery.recover(step.plan, error, self._touched_by(step.plan))
        else:
            self._scheduler.chosen(step.plan)

    def _take(self) -> StepUnderWay:
        step, self._under_way = self._under_way, None
        assert step is not None, "a step is under way"
        return step

    def _finish(self, step: StepUnderWay) -> None:
        """Wait for a step and take in what it computed; then the one launched after it chooses its tokens.

        Where a request failed, the step launched after it is finished too, before anybody counts on what it wrote.
        """
        try:
            results = step.launched.results()
        except BaseException as error:
            plans = [step.plan] if self._under_way is None else [step.plan, self._forsake()]
            self.ended += self.recovery.recover(step.plan, error, self._touched_by(*plans))
            return
        plan = step.plan.of_those_running()
        self._note_times(plan, step)
        failed_in_vain = _failed_in_vain(step.plan, results)
        self._account(plan, results)
        self._speculator.observe(plan, self._clock() - step.began)
        self.recovery.note_success()
        self._ledger.charge(plan)
        if plan.scheduled:
            self.last_size = StepSize(len(plan.scheduled), plan.num_tokens)
        if failed_in_vain:
            self._scheduler.doubt_all_blocks()
        self._choose()
        if self._under_way is not None and any(isinstance(result, RequestError) for result in results.values()):
            self._finish(self._take())
        if failed_in_vain:
            pool = self._scheduler.cache.pool
            self._runner.scrub([block_id for block_id in range(pool.num_blocks) if pool.is_free(block_id)])

    def _forsake(self) -> SchedulerOutput:
        """Wait for a step whose results are of no use, and return its plan."""
        step = self._take()
        try:
            step.launched.choose()
            step.launched.results()
        except Exception:  # it goes wrong as the one before it did
            logger.info("a step launched ahead failed too", exc_info=True)
        return step.plan

    def _touched_by(self, *plans: SchedulerOutput) -> Sequence[int]:
        """Return the blocks that steps may have written: all, where some may have been given back since."""
        if any(plan.is_ahead for plan in plans):
            return range(self._config.num_blocks)
        return blocks_of(request for plan in plans for request in plan.requests)

    def _propose(self) -> Drafts:
        """Return drafts for a step in which all that run are about to decode: a step with a prefill is long as it is,
        and one with suspects has enough to prove."""
        limits = self.recovery.limits
        running = self._lineup.running[: limits.num_seqs]
        if self.recovery.suspects is not None or any(r.num_tokens - r.num_computed_tokens > 1 for r in running):
            return NO_DRAFTS
        return self._speculator.propose(running, limits.num_tokens - len(running))

    def _note_times(self, plan: SchedulerOutput, step: StepUnderWay) -> None:
        """Tell the offloading what a step took, and what copies took of it."""
        now = self._clock()
        seconds = now - max(step.launched_at, self._finished_at)
        self._finished_at = now
        copies = self._runner.take_copy_times()
        alone = max(0.0, seconds - sum(copy.seconds for copy in copies))
        self._scheduler.cache.offload.note_step(plan.num_tokens, len(plan.scheduled), alone, copies)

    def _account(self, plan: SchedulerOutput, results: Mapping[str, Sampled]) -> None:
        """Take in what a step computed."""
        self.num_steps += 1
        suspects = blocks_of(r for r in plan.requests if isinstance(results.get(r.request_id), RequestError))
        num_known = sum(request.num_tokens for request in plan.requests)
        self.ended += self._scheduler.update(plan, results)
        self.num_output_tokens += sum(request.num_tokens for request in plan.requests) - num_known
        if suspects:
            # Those that somebody still holds are sound: whoever reads one that is not fails in the same step.
            self._runner.scrub([block_id for block_id in suspects if self._scheduler.cache.pool.is_free(block_id)])


def _failed_in_vain(plan: SchedulerOutput, results: Mapping[str, Sampled]) -> bool:
    """Whether a step went wrong for a request that had ended well before it: then what it wrote, to blocks that nobody
    knows any more to have been that request's, is not finite."""
    return plan.is_ahead and any(
        isinstance(results.get(request.request_id), RequestError)
        for request in plan.requests
        if request.state is RequestState.FINISHED and request.error is None
    )
