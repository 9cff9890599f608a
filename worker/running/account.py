"""The worker's account of its own time, by the hour, as SQL is to have it."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.block_ledger import NS, nanoseconds
from engine.ledger import EngineAccount
from worker.sql.worker_hours import AccountEntry, WorkerHour

HOUR_NS = 3600 * NS
ONE_HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOKENS = frozenset({"computed_tokens", "recomputed_tokens"})


class WorkerAccount:
    """Cuts the engine's account into hours of UTC. From any thread.

    The wall clock is read once, at the start: from then on the monotonic clock counts, whatever somebody does to the
    other. An hour's figures are of all of the hour so far, so that writing them twice does no harm.
    """

    def __init__(
        self,
        worker_name: str,
        read: Callable[[], EngineAccount],
        num_blocks: int,
        began: float,
        utc_now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` gives the engine's account; `began` is when the worker began, in seconds on `clock`, the engine's."""
        self._worker_name = worker_name
        self._read = read
        self._num_blocks = num_blocks
        self._began_ns = nanoseconds(began)
        self._began_utc_ns = (utc_now() - EPOCH) // timedelta(microseconds=1) * 1000 - nanoseconds(clock() - began)
        self._clock = clock
        self._after_ns = 0  # what came after the engine's loop
        self._noted: Counter[str] = Counter()
        self._hours: dict[int, Counter[str]] = {}  # by hours since the epoch
        self._lock = threading.Lock()

    def entry(self) -> AccountEntry:
        """Return the account of the hours that are not forgotten, as far as the engine told."""
        with self._lock:
            self._note(self._totals())
            hours = tuple(_worker_hour(index, figures) for index, figures in sorted(self._hours.items()))
        return AccountEntry(self._worker_name, hours)

    def forget(self, written: AccountEntry) -> None:
        """Forget the hours that are written, the last one excepted: it goes on."""
        with self._lock:
            for hour in written.hours[:-1]:
                self._hours.pop((hour.hour - EPOCH) // ONE_HOUR, None)

    def close(self) -> None:
        """Count the time until now as overhead: the engine's loop has ended. Call it once."""
        with self._lock:
            account = self._read()
            self._after_ns = nanoseconds(self._clock()) - account.began_ns - account.elapsed_ns

    def _totals(self) -> Counter[str]:
        """Return the figures since the worker began; times in nanoseconds."""
        account = self._read()
        before_ns = account.began_ns - self._began_ns
        blocks_ns = self._num_blocks * (account.elapsed_ns + self._after_ns)
        return Counter(
            wall_seconds=before_ns + account.elapsed_ns + self._after_ns,
            engine_seconds=account.request_ns,
            wasted_engine_seconds=account.wasted_ns,
            idle_seconds=account.idle_ns,
            loading_seconds=before_ns + account.loading_ns,
            overhead_seconds=account.overhead_ns + self._after_ns,
            kv_block_seconds_held=account.held_block_ns,
            kv_block_seconds_cached=account.cached_block_ns,
            kv_block_seconds_free=blocks_ns - account.held_block_ns - account.cached_block_ns,
            computed_tokens=account.computed_tokens,
            recomputed_tokens=account.recomputed_tokens,
        )

    def _note(self, totals: Counter[str]) -> None:
        """Put what came since the last time into its hours: evenly, where it spans several."""
        begin, end = (self._began_utc_ns + figures["wall_seconds"] for figures in (self._noted, totals))
        if begin == end:
            return
        news = {name: total - self._noted[name] for name, total in totals.items()}
        self._noted = totals
        given: Counter[str] = Counter()
        for index in range(begin // HOUR_NS, -(-end // HOUR_NS)):
            upto = min(end, (index + 1) * HOUR_NS)
            hour = self._hours.setdefault(index, Counter())
            for name, amount in news.items():
                part = amount * (upto - begin) // (end - begin) - given[name]
                given[name] += part
                hour[name] += part


def _worker_hour(index: int, figures: Counter[str]) -> WorkerHour:
    values: dict[str, Any] = {name: value if name in TOKENS else value / NS for name, value in figures.items()}
    return WorkerHour(hour=EPOCH + index * ONE_HOUR, **values)
