"""The scheduler: each step, which requests compute how many tokens. Known tokens catch up; nothing else decides."""

import logging
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from engine.admission import check_length
from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.forking import is_aside, stands_aside
from engine.request import FinishReason, ForkGroup, Request, RequestError, RequestState
from engine.step_plan import NO_DRAFTS, Drafts, Sampled, ScheduledRequest, SchedulerOutput, StepLimits
from engine.stopping import finish_reason

logger = logging.getLogger(__name__)


class Scheduler:
    """Waiting and running requests over one KV cache.

    First come, first served: running requests are scheduled in order of admission, the newest is preempted first. Its
    blocks are freed but stay cached, so recomputation is often a prefix hit. The oldest running request can always go
    on, because `add` refuses what the whole pool could not hold.
    """

    def __init__(
        self, config: EngineConfig, cache: KVCacheManager, clock: Callable[[], float], detokenize: Detokenizer
    ) -> None:
        self._config = config
        self.cache = cache
        self._clock = clock
        self._detokenize = detokenize
        self._requests: dict[str, Request] = {}  # all unfinished ones
        self._waiting: deque[Request] = deque()  # may hold aborted requests, skipped when they come up
        self._num_waiting = 0
        self._running: list[Request] = []  # in order of admission

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> Sequence[Request]:
        """Running requests in order of admission."""
        return self._running

    @property
    def unfinished(self) -> Mapping[str, Request]:
        """Unfinished requests by id."""
        return self._requests

    def add(self, *requests: Request) -> None:
        """Queue requests, all or none. Raises RequestError for one that can never fit; nobody else is touched.

        Those of a group need not fit all at once: each is preempted and admitted by itself.
        """
        for request in requests:
            if request.request_id in self._requests:
                raise RequestError("duplicate_request", f"request_id {request.request_id!r} is already in the engine")
            check_length(request, self._config)
        for request in requests:
            self._enqueue(request)

    def _enqueue(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._waiting.append(request)
        self._num_waiting += 1

    def abort(self, request_id: str) -> Request | None:
        """End an unfinished request as cancelled and return it; None if there is no such request."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, FinishReason.CANCELLED)
        return request

    def schedule(
        self, limits: StepLimits, only: Container[str] | None = None, drafts: Drafts = NO_DRAFTS
    ) -> SchedulerOutput:
        """Plan a step: allocate its blocks, preempting where they run out, and admit what fits, of `only` if given.

        `drafts` are of requests as they are known now; they get what room is left.
        The plan must be run next, and `update` called with its tokens: blocks are offered to the prefix cache here.
        """
        scheduled, preempted, budget = self._schedule_running(limits.num_tokens, limits.num_seqs)
        if not preempted:
            budget = self._admit_waiting(scheduled, budget, limits.num_seqs, only)
            if drafts:
                self._add_drafts(scheduled, budget, drafts)
        num_tokens = sum(share.num_scheduled_tokens for share in scheduled)
        return SchedulerOutput(tuple(scheduled), num_tokens, tuple(preempted), self.cache.take_transfers())

    def _schedule_running(self, budget: int, num_seqs: int) -> tuple[list[ScheduledRequest], list[Request], int]:
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        # Forks are running as soon as there is something to share, so there may be more of them than a step may hold.
        while len(scheduled) < min(len(self._running), num_seqs) and budget > 0:
            request = self._running[len(scheduled)]
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            while not self.cache.grow(request, request.num_computed_tokens + count):
                preempted.append(self._preempt_newest())
                if preempted[-1] is request:
                    return scheduled, preempted, budget
            budget -= self._take(request, count, scheduled)
        return scheduled, preempted, budget

    def _admit_waiting(
        self, scheduled: list[ScheduledRequest], budget: int, num_seqs: int, only: Container[str] | None
    ) -> int:
        """Admit what fits into `budget` tokens; returns what is left of it."""
        while budget > 0 and len(self._running) < num_seqs and self._waiting:
            request = self._waiting[0]
            if request.state is RequestState.WAITING:
                if only is not None and request.request_id not in only:
                    break
                if stands_aside(request):
                    self._waiting.popleft()
                    continue
                if not self.cache.admit(request):
                    break
                count = min(request.num_tokens - request.num_computed_tokens, budget)
                grown = self.cache.grow(request, request.num_computed_tokens + count)
                assert grown, "an admitted request has room for its known tokens"
                self._start(request)
                budget -= self._take(request, count, scheduled)
            self._waiting.popleft()
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

    def _start(self, request: Request) -> None:
        request.state = RequestState.RUNNING
        self._num_waiting -= 1
        self._running.append(request)
        if request.figures.admitted_at is None:
            request.figures.admitted_at = self._clock()
            request.figures.prefix_hit_tokens = request.num_computed_tokens

    def _take(self, request: Request, count: int, scheduled: list[ScheduledRequest]) -> int:
        scheduled.append(ScheduledRequest(request, request.num_computed_tokens, count))
        self.cache.cache_blocks(request, request.num_computed_tokens + count)
        return count

    def _preempt_newest(self) -> Request:
        request = self._running[-1]
        self._preempt(request)
        return request

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self.cache.release(request)
        request.figures.preemptions += 1
        self._return_aside(request)
        request.state = RequestState.WAITING
        self._waiting.appendleft(request)
        self._num_waiting += 1

    def _fork(self, request: Request, group: ForkGroup) -> None:
        """Let those of a request's group that wait for the prompt run on its blocks, once it has all of that."""
        if not group.aside or not request.has_prompt:
            return
        for other in group.aside:
            self.cache.fork(request, other)
            self._start(other)
        group.aside.clear()

    def _return_aside(self, request: Request) -> None:
        """Let those of a request's group that waited for it wait in line again, where it is about to leave."""
        group = request.group
        if group is not None:
            self._waiting.extendleft(reversed(group.aside))
            group.aside.clear()

    def update(self, plan: SchedulerOutput, results: Mapping[str, Sampled]) -> list[Request]:
        """Account a step that ran and return the requests it finished.

        `results` has, by request id, the tokens of every share that samples, one more than it accepts of its draft, and
        the error of any that must end. An error beside a draft may be the draft's: the request starts over, without.
        """
        now = self._clock()
        finished, doubtful = [], []
        failed_blocks: set[int] = set()
        for share in plan.scheduled:
            request, figures, num_drafted = share.request, share.request.figures, len(share.draft)
            request.num_computed_tokens += share.num_scheduled_tokens - num_drafted
            figures.computed_tokens += share.num_scheduled_tokens
            figures.drafted_tokens += num_drafted
            result = results.get(request.request_id)
            if isinstance(result, RequestError):
                request.may_draft = request.may_draft and not share.draft
                is_first = failed_blocks.isdisjoint(request.held_block_ids)
                failed_blocks.update(request.held_block_ids)
                if is_first and not share.draft:
                    self.fail(request, result)
                    finished.append(request)
                else:
                    doubtful.append(request)
                continue
            if request.group is not None:
                self._fork(request, request.group)
            assert (result is not None) == share.samples, "tokens for each share that samples, and no other"
            if result is not None and self._take_in(share, result, now):
                finished.append(request)
        for request in reversed(doubtful):
            # It may only have read what another failing request wrote in this step: it starts over, without that.
            self.cache.forget(request.held_block_ids)
            self._preempt(request)
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
        num_accepted = request.num_tokens - num_known - 1
        if num_accepted:
            figures.accepted_tokens += num_accepted
            request.num_computed_tokens += num_accepted
            self.cache.cache_blocks(request, request.num_computed_tokens)
        if request.logprobs:
            del request.logprobs[request.num_output_tokens :]  # of tokens behind the end
        if isinstance(end, RequestError):
            self.fail(request, end)
        elif end is not None:
            self._finish(request, end)
        return end is not None

    def _end_of(self, request: Request) -> FinishReason | RequestError | None:
        """Return why a request ends with its newest token, None if it does not."""
        try:
            return finish_reason(request, self._config.max_model_len, self._detokenize)
        except Exception as error:  # a bug of the detokenizer: this request's end, nobody else's
            logger.exception("the output of request %s cannot be detokenized", request.request_id)
            message = f"the detokenizer raised {type(error).__name__}; the log has the details"
            return RequestError("internal_error", message)

    def fail(self, request: Request, error: RequestError) -> None:
        """End a request with an error; the content of its blocks is not reused."""
        request.error = error
        self.cache.forget(request.held_block_ids)
        self._finish(request, FinishReason.ERROR)

    def restart(self) -> None:
        """After a step that failed: no block's content can be trusted, so all running requests start over."""
        self._preempt_all()
        self.cache.forget_all()

    def set_apart(self, request_ids: Container[str]) -> None:
        """Preempt all running requests and put those of `request_ids` first in line, otherwise in their order."""
        self._preempt_all()
        ahead = [request for request in self._waiting if request.request_id in request_ids]
        behind = [request for request in self._waiting if request.request_id not in request_ids]
        self._waiting = deque([*ahead, *behind])

    def _preempt_all(self) -> None:
        while self._running:
            self._preempt_newest()

    def _finish(self, request: Request, reason: FinishReason) -> None:
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
        else:
            self._num_waiting -= 1
        self.cache.release(request)
        self._leave_group(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        request.figures.finished_at = self._clock()
        del self._requests[request.request_id]

    def _leave_group(self, request: Request) -> None:
        group = request.group
        if group is not None:
            group.members.remove(request)
            if request in group.aside:
                group.aside.remove(request)
            else:
                self._return_aside(request)

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, states, blocks and counts agree."""
        waiting = [request for request in self._waiting if request.state is RequestState.WAITING]
        waiting += [request for request in self._requests.values() if is_aside(request)]
        assert len(waiting) == self._num_waiting, "waiting count differs from the queue"
        assert all(request.state is RequestState.RUNNING for request in self._running), "a running request is not"
        assert not any(request.block_tables for request in waiting), "a waiting request holds blocks"
        assert {r.request_id for r in (*waiting, *self._running)} == set(self._requests), "requests are lost"
        self.cache.check_integrity(self._running)
