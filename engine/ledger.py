"""The ledger: whose time the engine's time is. Each step's is divided among its requests, to the nanosecond.

A request's part of a step is in proportion to its weight, which says what makes steps long:

    weight = PAIRS_PER_TOKEN * tokens + PAIRS_PER_READ * context + pairs

for the `tokens` that it computes, the `context` that they attend to, which is read once (it is what a decode costs),
and the `pairs` of a token and a token of its context. One pair is the unit; docs/ledger.md has the measurements that
the constants come from.
"""

from collections.abc import Callable
from dataclasses import dataclass

from engine.block_ledger import nanoseconds
from engine.cache_manager import KVCacheManager
from engine.request import RequestFigures
from engine.step_plan import ScheduledRequest, SchedulerOutput

PAIRS_PER_TOKEN = 2048
PAIRS_PER_READ = 6


@dataclass(frozen=True, slots=True)
class EngineAccount:
    """Where an engine's time went since it was made, up to one moment; all of one moment. Times are nanoseconds.

    `elapsed_ns` is the sum of the request, idle, loading and overhead times.
    """

    began_ns: int  # when the engine was made, on its clock
    elapsed_ns: int = 0
    request_ns: int = 0  # charged to requests
    wasted_ns: int = 0  # of that: for tokens computed before, drafts that were rejected, and steps that failed
    idle_ns: int = 0
    loading_ns: int = 0
    overhead_ns: int = 0
    held_block_ns: int = 0  # KV blocks x time: held by requests, one that many share counted once
    cached_block_ns: int = 0  # held by nobody, kept for the prefix cache
    computed_tokens: int = 0  # run through the model
    recomputed_tokens: int = 0  # of those: computed before, and lost
    drafted_tokens: int = 0  # of those: proposed by speculation
    rejected_tokens: int = 0  # of the drafted ones: not what came next


class EngineLedger:
    """Charges time, always all that passed since the last charge: to a step's requests, or to what it is called for.

    One thread charges; `account` may be read from others.
    """

    def __init__(self, cache: KVCacheManager, clock: Callable[[], float]) -> None:
        """`clock` is the cache's too; it returns seconds."""
        self._cache = cache
        self._clock = clock
        self._charged_ns = began_ns = nanoseconds(clock())
        self._request_ns = self._wasted_ns = self._idle_ns = self._loading_ns = self._overhead_ns = 0
        self._computed_tokens = self._recomputed_tokens = 0
        self._drafted_tokens = self._rejected_tokens = 0
        self.account = EngineAccount(began_ns)

    def charge(self, plan: SchedulerOutput) -> None:
        """Charge a step that went well to its requests, which know its tokens by now; as overhead where it has none."""
        if not plan.scheduled:
            self.charge_overhead()
            return
        spent_ns = self._lap()
        self._request_ns += spent_ns
        self._computed_tokens += plan.num_tokens
        for share, part_ns in zip(plan.scheduled, divide(spent_ns, plan.scheduled), strict=True):
            figures = share.request.figures
            figures.engine_ns += part_ns
            rejected = share.num_rejected_tokens if share.draft else 0
            self._drafted_tokens += len(share.draft)
            reached = share.num_computed_tokens + share.num_scheduled_tokens - rejected
            if rejected or share.num_computed_tokens < figures.reached_tokens:
                self._note_waste(figures, share, rejected, part_ns)
            figures.reached_tokens = max(figures.reached_tokens, reached)
        self._close()

    def charge_failed(self, plan: SchedulerOutput) -> None:
        """Charge a step that failed to its requests, as wasted; as overhead where it has none."""
        if not plan.scheduled:
            self.charge_overhead()
            return
        spent_ns = self._lap()
        self._request_ns += spent_ns
        self._wasted_ns += spent_ns
        for share, part_ns in zip(plan.scheduled, divide(spent_ns, plan.scheduled), strict=True):
            share.request.figures.engine_ns += part_ns
            share.request.figures.wasted_ns += part_ns
        self._close()

    def charge_loading(self) -> None:
        self._loading_ns += self._lap()
        self._close()

    def charge_idleness(self) -> None:
        self._idle_ns += self._lap()
        self._close()

    def charge_overhead(self) -> None:
        self._overhead_ns += self._lap()
        self._close()

    def _note_waste(self, figures: RequestFigures, share: ScheduledRequest, rejected: int, part_ns: int) -> None:
        """Count as wasted what of a share was computed before, and what of its draft was rejected."""
        again = max(0, min(share.num_scheduled_tokens - rejected, figures.reached_tokens - share.num_computed_tokens))
        wasted_ns = part_ns * (again + rejected) // share.num_scheduled_tokens
        figures.recomputed_tokens += again
        figures.wasted_ns += wasted_ns
        self._recomputed_tokens += again
        self._rejected_tokens += rejected
        self._wasted_ns += wasted_ns

    def _lap(self) -> int:
        """Return the time since the last charge."""
        now_ns = nanoseconds(self._clock())
        spent_ns, self._charged_ns = now_ns - self._charged_ns, now_ns
        return spent_ns

    def _close(self) -> None:
        """Publish the account as of the last charge."""
        self._cache.advance(self._charged_ns)
        blocks = self._cache.block_ledger
        self.account = EngineAccount(
            began_ns=self.account.began_ns,
            elapsed_ns=self._charged_ns - self.account.began_ns,
            request_ns=self._request_ns,
            wasted_ns=self._wasted_ns,
            idle_ns=self._idle_ns,
            loading_ns=self._loading_ns,
            overhead_ns=self._overhead_ns,
            held_block_ns=blocks.held_ns,
            cached_block_ns=blocks.cached_ns,
            computed_tokens=self._computed_tokens,
            recomputed_tokens=self._recomputed_tokens,
            drafted_tokens=self._drafted_tokens,
            rejected_tokens=self._rejected_tokens,
        )


def divide(whole: int, shares: tuple[ScheduledRequest, ...]) -> list[int]:
    """Return the parts of a whole by the shares' weights; their sum is the whole."""
    weights = [weight(share.num_computed_tokens, share.num_scheduled_tokens) for share in shares]
    total = sum(weights)
    parts = []
    summed = given = 0
    for one in weights:
        summed += one
        upto = whole * summed // total
        parts.append(upto - given)
        given = upto
    return parts


def weight(num_computed_tokens: int, num_scheduled_tokens: int) -> int:
    """Return the weight of one request's share of a step."""
    tokens, context = num_scheduled_tokens, num_computed_tokens + num_scheduled_tokens
    pairs = tokens * num_computed_tokens + tokens * (tokens + 1) // 2
    return PAIRS_PER_TOKEN * tokens + PAIRS_PER_READ * context + pairs
