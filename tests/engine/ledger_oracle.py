"""What an engine's ledger must come to, counted the slow way: at every tick, over every block of every request."""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from engine.block_ledger import nanoseconds
from engine.request import Request
from tests.engine.fakes import Harness

INDIVISIBLE_NS = 10_000  # far above the nanosecond a holder, block and change that cannot be divided evenly


@dataclass
class LedgerOracle:
    """Watches a harness whose clock moves by `tick` alone."""

    harness: Harness
    requests: list[Request] = field(default_factory=list)  # all that were ever added
    shares: dict[str, Fraction] = field(default_factory=dict)  # block nanoseconds by request id
    held_ns: int = 0
    cached_ns: int = 0

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        clock, pool = self.harness.clock, self.harness.engine.scheduler.cache.pool
        before = nanoseconds(clock.now)
        clock.now += seconds
        passed = nanoseconds(clock.now) - before
        holding = [request for request in self.requests if request.block_tables]
        holders = Counter(block_id for request in holding for block_id in request.held_block_ids)
        self.held_ns += passed * len(holders)
        self.cached_ns += passed * pool.num_reusable
        for request in holding:
            part = sum((Fraction(passed, holders[block_id]) for block_id in request.held_block_ids), Fraction())
            self.shares[request.request_id] = self.shares.get(request.request_id, Fraction()) + part

    def check(self) -> None:
        """Raise AssertionError unless the ledger adds up, and comes to the same to the nanosecond or so."""
        engine = self.harness.engine
        engine.settle()
        account = engine.ledger.account
        charged = account.request_ns + account.idle_ns + account.loading_ns + account.overhead_ns
        assert account.elapsed_ns == charged == nanoseconds(self.harness.clock.now) - account.began_ns
        figures = [request.figures for request in self.requests]
        assert sum(each.engine_ns for each in figures) == account.request_ns
        assert sum(each.wasted_ns for each in figures) == account.wasted_ns
        assert sum(each.recomputed_tokens for each in figures) == account.recomputed_tokens
        assert sum(each.drafted_tokens for each in figures) == account.drafted_tokens
        assert sum(each.drafted_tokens - each.accepted_tokens for each in figures) == account.rejected_tokens
        assert sum(each.computed_tokens for each in figures) == account.computed_tokens
        assert all(0 <= each.wasted_ns <= each.engine_ns for each in figures)
        assert (account.held_block_ns, account.cached_block_ns) == (self.held_ns, self.cached_ns)
        assert sum(each.kv_block_share_ns for each in figures) == self.held_ns
        for request in self.requests:
            difference = request.figures.kv_block_share_ns - self.shares.get(request.request_id, Fraction())
            assert abs(difference) < INDIVISIBLE_NS
