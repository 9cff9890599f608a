"""After a step that failed: everybody starts over, in smaller steps or apart, and the one to blame is ended."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from engine.config import EngineConfig
from engine.ledger import EngineLedger
from engine.lineup import Lineup
from engine.quarantine import DeviceOutOfMemory, EngineBroken, Quarantine
from engine.request import Request, RequestError
from engine.step_plan import SchedulerOutput, StepLimits

CALM_STEPS = 64  # without the device running out of memory, before steps may double again

logger = logging.getLogger(__name__)


class Mender(Protocol):
    """What recovering needs of a model runner."""

    def probe(self) -> None:
        """Run a smallest step through a free block. Raises when the model fails on that too."""

    def scrub(self, block_ids: list[int]) -> None:
        """Make the content of blocks finite."""


class Recovery:
    """How much a step may hold, and who must run apart, by what failed before."""

    def __init__(self, config: EngineConfig, lineup: Lineup, runner: Mender, ledger: EngineLedger) -> None:
        self._lineup = lineup
        self._runner = runner
        self._ledger = ledger
        self._quarantine = Quarantine()
        self._smallest = config.block_size  # tokens of a step
        self._widest = StepLimits(config.max_num_seqs, config.token_budget)
        self._calm_steps = 0
        self._in_turn = False  # since a step ran out of memory that had another's memory beside it
        self.limits = self._widest

    @property
    def suspects(self) -> Mapping[str, int] | None:
        """Those that alone may run now, by request id; None when nobody is under suspicion."""
        return self._quarantine.current

    @property
    def may_run_ahead(self) -> bool:
        """Whether a step may be launched while the one before it is under way."""
        return not self._in_turn and self.suspects is None

    def recover(self, plan: SchedulerOutput, error: BaseException, touched: Sequence[int]) -> list[Request]:
        """Let all start over after a step that raised; returns whom it ended. `touched` are the blocks that it, and a
        step launched after it, may have written.

        A step that was too large is made smaller, or first taken in turn; of another the request to blame is looked for
        among those that have not ended since. Raises EngineBroken when none is to blame, and what is no Exception.
        """
        going_on = plan.of_those_running()
        if isinstance(error, DeviceOutOfMemory):
            return self._shrink(plan, going_on, error, touched)
        if isinstance(error, Exception) and going_on.scheduled:
            return self._isolate(going_on, error, touched)
        self._start_over(going_on, touched)
        if isinstance(error, Exception):
            return []
        raise error

    def note_success(self) -> None:
        """After a step that went well: clear suspects, and let steps grow again."""
        self.review()
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS and (self._in_turn or self.limits != self._widest):
            self._calm_steps = 0
            self._in_turn = False
            self.limits = StepLimits(
                min(2 * self.limits.num_seqs, self._widest.num_seqs),
                min(2 * self.limits.num_tokens, self._widest.num_tokens),
            )

    def review(self) -> None:
        """Clear suspects that ended, or got as far as in the step that failed."""
        if self._quarantine.review(self._lineup.unfinished):
            self._set_suspects_apart()

    def _start_over(self, plan: SchedulerOutput, touched: Sequence[int]) -> None:
        self._lineup.restart()
        self._runner.scrub([*touched])
        self._ledger.charge_failed(plan)

    def _isolate(self, plan: SchedulerOutput, error: Exception, touched: Sequence[int]) -> list[Request]:
        """Suspect the requests of a step that failed, unless the model now fails on anything. Returns the culprit."""
        logger.error("a step of %d requests failed", len(plan.scheduled), exc_info=error)
        for share in plan.scheduled:
            share.request.may_draft = share.request.may_draft and not share.draft
        try:
            self._start_over(plan, touched)
            self._runner.probe()
        except Exception as sticky:
            raise EngineBroken(f"the model fails on any step: {sticky}") from error
        culprit = self._quarantine.accuse(plan)
        if culprit is not None:
            self._lineup.fail(culprit, RequestError("step_failed", "the model failed on it twice, at last alone"))
        self._quarantine.review(self._lineup.unfinished)
        self._set_suspects_apart()
        return [] if culprit is None else [culprit]

    def _shrink(
        self, plan: SchedulerOutput, going_on: SchedulerOutput, error: DeviceOutOfMemory, touched: Sequence[int]
    ) -> list[Request]:
        """Halve what a step may hold, or take steps in turn for a while. Returns the request that is too large even
        alone and in the smallest steps."""
        logger.warning("%d tokens of %d requests: %s", plan.num_tokens, len(plan.scheduled), error)
        self._start_over(going_on, touched)
        self._calm_steps = 0
        if plan.is_ahead:
            self._in_turn = True
            return []
        num_seqs = max(1, len(plan.scheduled) // 2)
        self.limits = StepLimits(num_seqs, max(self._smallest, num_seqs, plan.num_tokens // 2))
        if len(plan.scheduled) > 1 or plan.num_tokens > self._smallest:
            return []
        request = plan.scheduled[0].request
        self._lineup.fail(request, RequestError("out_of_memory", "the device has no memory for it, even alone"))
        self.review()
        return [request]

    def _set_suspects_apart(self) -> None:
        group = self._quarantine.current
        if group is not None:
            self._lineup.set_apart(group)


def blocks_of(requests: Iterable[Request]) -> list[int]:
    """Return the blocks that requests hold."""
    return sorted({block_id for request in requests for block_id in request.held_block_ids})
