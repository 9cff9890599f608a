"""Where unfinished requests stand: waiting in line or running, and the blocks that they have or lose with it."""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence

from engine.admission import check_length
from engine.cache_manager import KVCacheManager
from engine.config import EngineConfig
from engine.forking import is_aside, stands_aside
from engine.request import FinishReason, ForkGroup, Request, RequestError, RequestState


class Lineup:
    """Waiting and running requests over one KV cache: first come, first served, and the newest is preempted first.

    A preempted request's blocks are freed but stay cached, so recomputation is often a prefix hit.
    """

    def __init__(self, config: EngineConfig, cache: KVCacheManager, clock: Callable[[], float]) -> None:
        self._config = config
        self._cache = cache
        self._clock = clock
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

    def next_waiting(self, only: Container[str] | None) -> Request | None:
        """Return the request that is next in line; None where nobody waits, or that one is not of `only`. Who waits for
        another of its group to compute their prompt is put aside."""
        while self._waiting:
            request = self._waiting[0]
            if request.state is RequestState.WAITING:
                if only is not None and request.request_id not in only:
                    return None
                if not stands_aside(request):
                    return request
            self._waiting.popleft()
        return None

    def admit_next(self) -> None:
        """Let the request that is next in line, and has its blocks, run."""
        self._start(self._waiting.popleft())

    def _start(self, request: Request) -> None:
        request.state = RequestState.RUNNING
        self._num_waiting -= 1
        self._running.append(request)
        if request.figures.admitted_at is None:
            request.figures.admitted_at = self._clock()
            request.figures.prefix_hit_tokens = request.num_computed_tokens

    def preempt_newest(self) -> Request:
        """Preempt the running request that was admitted last, and return it."""
        request = self._running[-1]
        self.preempt(request)
        return request

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks and put it first in line."""
        self._running.remove(request)
        self._cache.release(request)
        request.num_pending_tokens = 0
        request.figures.preemptions += 1
        self._return_aside(request)
        request.state = RequestState.WAITING
        self._waiting.appendleft(request)
        self._num_waiting += 1

    def fork(self, request: Request, group: ForkGroup) -> None:
        """Let those of a request's group that wait for the prompt run on its blocks: it has computed all of that."""
        for other in group.aside:
            self._cache.fork(request, other)
            self._start(other)
        group.aside.clear()

    def _return_aside(self, request: Request) -> None:
        """Let those of a request's group that waited for it wait in line again, where it is about to leave."""
        group = request.group
        if group is not None:
            self._waiting.extendleft(reversed(group.aside))
            group.aside.clear()

    def fail(self, request: Request, error: RequestError) -> None:
        """End a request with an error; the content of its blocks is not reused."""
        request.error = error
        self._cache.forget(request.held_block_ids)
        self.finish(request, FinishReason.ERROR)

    def restart(self) -> None:
        """After a step that failed: no block's content can be trusted, so all running requests start over."""
        self._preempt_all()
        self._cache.forget_all()

    def set_apart(self, request_ids: Container[str]) -> None:
        """Preempt all running requests and put those of `request_ids` first in line, otherwise in their order."""
        self._preempt_all()
        ahead = [request for request in self._waiting if request.request_id in request_ids]
        behind = [request for request in self._waiting if request.request_id not in request_ids]
        self._waiting = deque([*ahead, *behind])

    def _preempt_all(self) -> None:
        while self._running:
            self.preempt_newest()

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, and give its blocks back."""
        if request.state is RequestState.RUNNING:
            self._running.remove(request)
        else:
            self._num_waiting -= 1
        self._cache.release(request)
        self._leave_group(request)
        request.state = RequestState.FINISHED
        request.num_pending_tokens = 0
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
        self._cache.check_integrity(self._running)
