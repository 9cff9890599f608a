"""A worker's account is cut into hours, and nothing of it is lost at the edges."""

from datetime import UTC, datetime, timedelta

from engine.block_ledger import NS
from engine.ledger import EngineAccount
from worker.running.account import WorkerAccount
from worker.sql.worker_hours import WorkerHour

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = 3600
BEGAN = 1000.0  # on the monotonic clock
NUM_BLOCKS = 10


class Engine:
    """An engine that was made `loaded_s` after its worker began, and works and rests by turns."""

    def __init__(self, loaded_s: int = 0) -> None:
        self.account = EngineAccount(began_ns=int(BEGAN + loaded_s) * NS)
        self.now = BEGAN + loaded_s

    def run(self, busy_s: int, idle_s: int) -> None:
        before = self.account
        self.now += busy_s + idle_s
        self.account = EngineAccount(
            began_ns=before.began_ns,
            elapsed_ns=before.elapsed_ns + (busy_s + idle_s) * NS,
            request_ns=before.request_ns + busy_s * NS,
            idle_ns=before.idle_ns + idle_s * NS,
            held_block_ns=before.held_block_ns + 4 * busy_s * NS,
            computed_tokens=before.computed_tokens + 7 * busy_s,
        )


def account_of(engine: Engine, began_at: datetime = NOON) -> WorkerAccount:
    made_at = began_at + timedelta(seconds=engine.now - BEGAN)
    return WorkerAccount("w1", lambda: engine.account, NUM_BLOCKS, BEGAN, lambda: made_at, lambda: engine.now)


def test_an_hour_is_written_whole_each_time() -> None:
    engine = Engine(loaded_s=60)
    account = account_of(engine)
    engine.run(busy_s=600, idle_s=0)
    (first,) = account.entry().hours
    assert first == WorkerHour(NOON, 660.0, 600.0, 0.0, 0.0, 60.0, 0.0, 2400.0, 0.0, 3600.0, 4200, 0)
    account.forget(account.entry())
    engine.run(busy_s=0, idle_s=300)
    (more,) = account.entry().hours
    assert (more.hour, more.wall_seconds, more.engine_seconds, more.idle_seconds) == (NOON, 960.0, 600.0, 300.0)
    assert account.entry().hours == (more,)


def test_what_spans_hours_is_spread_evenly_over_them() -> None:
    engine = Engine()
    account = account_of(engine, NOON + timedelta(minutes=45))
    engine.run(busy_s=HOUR, idle_s=HOUR)  # a database that was away for two hours
    hours = account.entry().hours
    assert [hour.hour for hour in hours] == [NOON + timedelta(hours=number) for number in range(3)]
    assert [hour.wall_seconds for hour in hours] == [900.0, 3600.0, 2700.0]
    assert [hour.engine_seconds for hour in hours] == [450.0, 1800.0, 1350.0]
    assert [hour.kv_block_seconds_held for hour in hours] == [1800.0, 7200.0, 5400.0]
    assert [hour.kv_block_seconds_free for hour in hours] == [7200.0, 28_800.0, 21_600.0]
    assert sum(hour.computed_tokens for hour in hours) == engine.account.computed_tokens


def test_hours_that_are_over_and_written_are_forgotten() -> None:
    engine = Engine()
    account = account_of(engine, NOON + timedelta(minutes=59))
    engine.run(busy_s=120, idle_s=0)
    hours = account.entry().hours
    assert len(hours) == 2
    engine.run(busy_s=60, idle_s=0)
    assert len(account.entry().hours) == 2  # nobody said that the first one is written
    account.forget(account.entry())
    engine.run(busy_s=0, idle_s=30)
    (latest,) = account.entry().hours
    assert (latest.hour, latest.wall_seconds) == (NOON + timedelta(hours=1), 150.0)


def test_time_after_the_engines_end_is_overhead() -> None:
    engine = Engine()
    account = account_of(engine)
    engine.run(busy_s=10, idle_s=0)
    engine.now += 5
    account.close()
    (hour,) = account.entry().hours
    assert (hour.wall_seconds, hour.engine_seconds, hour.overhead_seconds) == (15.0, 10.0, 5.0)
    assert hour.kv_block_seconds_held + hour.kv_block_seconds_free == 150.0


def test_a_clock_that_is_set_changes_nothing() -> None:
    """The wall clock was read once."""
    engine = Engine()
    times = iter([NOON])
    account = WorkerAccount("w1", lambda: engine.account, NUM_BLOCKS, BEGAN, lambda: next(times), lambda: engine.now)
    assert account.entry().hours == ()
    engine.run(busy_s=HOUR + 1, idle_s=0)
    assert [hour.wall_seconds for hour in account.entry().hours] == [3600.0, 1.0]
