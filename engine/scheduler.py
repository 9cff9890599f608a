"""The scheduler: each step, which requests compute how many tokens. Known tokens catch up; nothing else decides."""

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.forking import BlockCopy
from engine.lineup import Lineup
from engine.offloading import Transfer
from engine.request import FinishReason, Request, RequestError, RequestState
from engine.step_plan import NO_DRAFTS, Drafts, Sampled, ScheduledRequest, SchedulerOutput, StepLimits
from engine.stopping import finish_reason

logger = logging.getLogger(__name__)


class Scheduler:
    """Plans steps of the requests in a line-up, and takes in what they computed.

    Running requests are scheduled in order of admission. The oldest can always go on, because no request is queued that
    the whole pool could not hold.
    """

    def __init__(
        self,
        config: EngineConfig,
        cache: KVCacheManager,
        lineup: Lineup,
        clock: Callable[[], float],
        detokenize: Detokenizer,
    ) -> None:
        self._config = config
        self.cache = cache
        self._lineup = lineup
        self._clock = clock
        self._detokenize = detokenize
        self._failed_blocks: set[int] = set()  # held by requests that failed in the step that was updated last

    def schedule(
        self, limits: StepLimits, only: Container[str] | None = None, drafts: Drafts = NO_DRAFTS
    ) -> SchedulerOutput:
        """Plan a step: allocate its blocks, preempting where they run out, and admit what fits, of `only` if given.

        `drafts` are of requests as they are known now; they get what room is left.
        The plan must be launched next, then `launched` and `chosen` called, and `update` with its tokens: blocks are
        offered to the prefix cache here.
        """
        scheduled, preempted, budget = self._schedule_running(limits)
        if not preempted:
            budget = self._admit_waiting(scheduled, budget, limits.num_seqs, only)
            if drafts:
                self._add_drafts(scheduled, budget, drafts)
        return self._output(scheduled, preempted)

    def schedule_ahead(self, under_way: SchedulerOutput, limits: StepLimits) -> SchedulerOutput | None:
        """Plan the step after one that is under way, on the assumption that no request ends in that but by its length.
        None where its results must be known first; nothing is planned then.

        Whatever reads or writes blocks does so in the order of the steps, so that blocks which a request gives back may
        be another's in this step already. But nobody must get those of a request that turns out to have failed, so none
        is preempted here, and none gives back what it has just written.
        """
        if any(request.is_planned_in_turn for request in self._lineup.running) or self._may_slide_out(under_way):
            return None
        scheduled: list[ScheduledRequest] = []
        budget = limits.num_tokens
        for request in self._lineup.running:
            if len(scheduled) == limits.num_seqs or not budget:
                break
            if not _ends_by_length(request, self._config.max_model_len):
                count = min(request.num_expected_tokens - request.num_computed_tokens, budget)
                if not self.cache.grow(request, request.num_computed_tokens + count):
                    return None
                budget -= self._take(request, count, scheduled)
        self._offer_blocks(scheduled)
        self._admit_waiting(scheduled, budget, limits.num_seqs, None)
        return self._output(scheduled, [], is_ahead=True) if scheduled else None

    def _may_slide_out(self, plan: SchedulerOutput) -> bool:
        """Whether the next step could give back blocks that this one writes."""
        windows = [window for window in self._config.windows if window is not None]
        return bool(windows) and max(share.num_scheduled_tokens for share in plan.scheduled) >= min(windows)

    def launched(self, plan: SchedulerOutput) -> None:
        """Count what a step computes as computed."""
        for share in plan.scheduled:
            share.request.num_computed_tokens += share.num_known_tokens

    def chosen(self, plan: SchedulerOutput) -> None:
        """Count what a step has chosen as to be known, but for whom has ended since it was planned, or starts over.

        While it chooses, each token's position is the one behind all known and pending ones, whether the step before it
        is under way or has ended.
        """
        for share in plan.scheduled:
            if share.request.state is RequestState.RUNNING:
                share.request.num_pending_tokens += share.samples

    def _output(
        self, scheduled: list[ScheduledRequest], preempted: list[Request], *, is_ahead: bool = False
    ) -> SchedulerOutput:
        num_tokens = sum(share.num_scheduled_tokens for share in scheduled)
        return SchedulerOutput(tuple(scheduled), num_tokens, tuple(preempted), self.cache.take_transfers(), is_ahead)

    def _schedule_running(self, limits: StepLimits) -> tuple[list[ScheduledRequest], list[Request], int]:
        """Return the shares of requests that go on, whom they made wait again, and what is left of the budget."""
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        budget = limits.num_tokens
        # Forks are running as soon as there is something to share, so there may be more of them than a step may hold.
        running = self._lineup.running
        while len(scheduled) < min(len(running), limits.num_seqs) and budget > 0:
            request = running[len(scheduled)]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            if not self._make_room(request, request.num_computed_tokens + count, preempted):
                break
            budget -= self._take(request, count, scheduled)
        self._offer_blocks(scheduled)
        return scheduled, preempted, budget

    def _make_room(self, request: Request, num_tokens: int, preempted: list[Request]) -> bool:
        """Let a request have blocks for so many tokens, whoever must wait for it; False where it must wait itself."""
        while not self.cache.grow(request, num_tokens):
            preempted.append(self._lineup.preempt_newest())
            if preempted[-1] is request:
                return False
        return True

    def _admit_waiting(
        self, scheduled: list[ScheduledRequest], budget: int, num_seqs: int, only: Container[str] | None
    ) -> int:
        """Admit what fits into `budget` tokens; returns what is left of it."""
        while budget > 0 and self._lineup.num_running < num_seqs:
            request = self._lineup.next_waiting(only)
            if request is None or not self.cache.admit(request):
                break
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            grown = self.cache.grow(request, request.num_computed_tokens + count)
            assert grown, "an admitted request has room for its known tokens"
            self._lineup.admit_next()
            budget -= self._take(request, count, scheduled)
            self._offer_blocks(scheduled[-1:])
        return budget

    def _add_drafts(self, scheduled: list[ScheduledRequest], budget: int, drafts: Drafts) -> None:
        """Let shares that sample compute their drafts too. Nobody is preempted or kept waiting for one; the blocks that
        one takes stay its request's, which needs them next in any case."""
        for index, share in enumerate(scheduled):
            request = share.request
            most = min(budget, request.params.max_tokens - request.num_output_tokens - 1)
            draft = drafts.get(request.request_id, ())[: max(0, most)]
            stop = share.num_computed_tokens + share.num_scheduled_tokens + len(draft)
            if draft and share.samples and self.cache.extend(request, stop):
                scheduled[index] = replace(share, num_scheduled_tokens=stop - share.num_computed_tokens, draft=draft)
                budget -= len(draft)

    def _take(self, request: Request, count: int, scheduled: list[ScheduledRequest]) -> int:
        scheduled.append(ScheduledRequest(request, request.num_computed_tokens, count))
        return count

    def _offer_blocks(self, scheduled: Sequence[ScheduledRequest]) -> None:
        """Offer the blocks that a step fills to the prefix cache, as far as their tokens are known."""
        for share in scheduled:
            stop = share.num_computed_tokens + share.num_scheduled_tokens
            self.cache.cache_blocks(share.request, min(stop, share.request.num_tokens))

    def doubt_all_blocks(self) -> None:
        """Let whoever fails in the step that was launched after this one start over: anybody may have read, in a block
        that is new to it, what a request that has ended wrote there in this step."""
        self._failed_blocks = set(range(self._config.num_blocks))

    def update(self, plan: SchedulerOutput, results: Mapping[str, Sampled]) -> list[Request]:
        """Account a step that ran and return the requests it finished.

        `results` has, by request id, the tokens of every share that samples, one more than it accepts of its draft, and
        the error of any that must end. An error beside a draft may be the draft's: the request starts over, without.
        """
        now = self._clock()
        finished, doubtful = [], []
        failed_blocks = _with_copies(self._failed_blocks, plan.transfers) if plan.is_ahead else set()
        for share in plan.scheduled:
            request, figures, num_drafted = share.request, share.request.figures, len(share.draft)
            request.num_pending_tokens -= share.samples
            figures.computed_tokens += share.num_scheduled_tokens
            figures.drafted_tokens += num_drafted
            result = results.get(request.request_id)
            if isinstance(result, RequestError):
                request.may_draft = request.may_draft and not share.draft
                is_first = failed_blocks.isdisjoint(request.held_block_ids)
                failed_blocks.update(request.held_block_ids)
                if is_first and not share.draft:
                    self._lineup.fail(request, result)
                    finished.append(request)
                else:
                    doubtful.append(request)
                continue
            if request.group is not None and share.has_prompt:
                self._lineup.fork(request, request.group)
            assert (result is not None) == share.samples, "tokens for each share that samples, and no other"
            if result is not None and self._take_in(share, result, now):
                finished.append(request)
        self._failed_blocks = failed_blocks
        for request in reversed(doubtful):
            # It may only have read what another failing request wrote in this step, or in the one before that was under
            # way when it was planned: it starts over, without that.
            self.cache.forget(request.held_block_ids)
            self._lineup.preempt(request)
        return finished

    def _take_in(self, share: ScheduledRequest, tokens: tuple[int, ...], now: float) -> bool:
        """Let a request know its next tokens, up to the one that ends it. Returns whether one does."""
        request, figures = share.request, share.request.figures
        num_known = request.num_tokens
        end: FinishReason | RequestError | None = None
        for token in tokens:
            request.token_ids.append(token)
            figures.token_times.append(now)
            end = self._end_of(request)
            if end is not None:
                break
        num_accepted = request.num_tokens - num_known - 1  # of a draft
        if num_accepted:
            figures.accepted_tokens += num_accepted
            request.num_computed_tokens += num_accepted
            self.cache.cache_blocks(request, request.num_computed_tokens)
        if end is not None:  # a block that its last step filled, when its last token was still to be known
            self.cache.cache_blocks(request, min(request.num_computed_tokens, request.num_tokens - 1))
        if request.logprobs:
            del request.logprobs[request.num_output_tokens :]  # of tokens behind the end
        if isinstance(end, RequestError):
            self._lineup.fail(request, end)
        elif end is not None:
            self._lineup.finish(request, end)
        return end is not None

    def _end_of(self, request: Request) -> FinishReason | RequestError | None:
        """Return why a request ends with its newest token, None if it does not."""
        try:
            return finish_reason(request, self._config.max_model_len, self._detokenize)
        except Exception as error:  # a bug of the detokenizer: this request's end, nobody else's
            logger.exception("the output of request %s cannot be detokenized", request.request_id)
            message = f"the detokenizer raised {type(error).__name__}; the log has the details"
            return RequestError("internal_error", message)


def _ends_by_length(request: Request, max_model_len: int) -> bool:
    """Whether a request ends with the token that is pending, whatever that is."""
    if not request.num_pending_tokens:
        return False
    return (
        request.num_expected_output_tokens >= request.params.max_tokens or request.num_expected_tokens >= max_model_len
    )


def _with_copies(block_ids: set[int], transfers: Sequence[Transfer]) -> set[int]:
    """Return blocks, and those that became copies of them in a step."""
    copies = (transfer for transfer in transfers if isinstance(transfer, BlockCopy))
    return block_ids.union(copy.target for copy in copies if copy.source in block_ids)
