"""Some hundred jobs over days, for tests of roll-ups and of what reports say with them."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, update

from tests.sql.builders import START, claim_of, outcome_of, stats_of, worker_of
from worker.records import AttemptState, AttemptUsage, Outcome
from worker.sql.database import writing
from worker.sql.reporting import LATENCIES, LatencyRow, MemoryRow
from worker.sql.rollups.expressions import RELATIVE_ERROR, SMALLEST
from worker.sql.rollups.rolling import Roller
from worker.sql.store import JobStore
from worker.sql.tables import WorkerRow

DAYS = 12
NOW = START + timedelta(days=DAYS)


def outcomes_over_days(seed: int, count: int, days: float = DAYS) -> list[Outcome]:
    """Ended attempts over `days`, up to NOW."""
    chance = random.Random(seed)
    outcomes = []
    for number in range(count):
        at_s = chance.uniform(0, days * 86_400)
        claim = claim_of(
            f"{seed}-{number}",
            queue=chance.choice(["high", "low"]),
            at_s=at_s,
            tenant=chance.choice(["acme", "other"]),
            model=chance.choice([None, "m"]),
            batch_id=chance.choice([None, "night", f"day-{int(at_s // 86_400)}"]),
        )
        figures = stats_of(
            **{name: chance.choice([0.0, chance.lognormvariate(5, 2)]) for name in LATENCIES},
            prefix_hit_tokens=chance.choice([0, 16]),
            kv_block_seconds=chance.uniform(1, 9),
            kv_block_seconds_limit=chance.choice([None, 20.0]),
        )
        state = chance.choice([AttemptState.DONE] * 5 + [AttemptState.FAILED, AttemptState.CANCELLED])
        usage = AttemptUsage(
            engine_seconds=chance.uniform(0, 2), wasted_engine_seconds=0.125, computed_tokens=60, recomputed_tokens=3
        )
        outcomes.append(
            outcome_of(claim, state, at_s=at_s + chance.uniform(0, 60), stats=figures, text="text", usage=usage)
        )
    return outcomes


def store_all(store: JobStore, outcomes: Sequence[Outcome]) -> None:
    store.begin_attempts([outcome.claim for outcome in outcomes], "w1")
    assert not store.finish_attempts(outcomes)


def write_history(store: JobStore, database: Engine) -> list[Outcome]:
    """Some hundred jobs over twelve days, two in queues, on a worker that has a price."""
    store.register_worker(worker_of("w1", model="served"))
    with writing(database) as connection:
        connection.execute(update(WorkerRow).values(price_per_engine_hour=3600.0, price_currency="EUR"))
    outcomes = outcomes_over_days(1, 300)
    store_all(store, outcomes)
    store.begin_attempts([claim_of("running", queue="high")], "w1")
    return outcomes


def roll_up(database: Engine, now: datetime = NOW, *, check_all: bool = False) -> tuple[int, int]:
    done = Roller(database, now=lambda: now).run(check_all=check_all)
    return done.jobs, done.hours_again


def assert_close(exact: Sequence[LatencyRow | MemoryRow], rough: Sequence[LatencyRow | MemoryRow]) -> None:
    assert [(row.group, row.metric, row.count) for row in rough] == [
        (row.group, row.metric, row.count) for row in exact
    ]
    for one, other in zip(exact, rough, strict=True):
        assert other.mean == (one.mean if one.mean is None else pytest.approx(one.mean))
        assert (other.max, one.relative_error) == (one.max, 0.0)
        for percentile in ("p50", "p90", "p99"):
            value = getattr(one, percentile)
            assert getattr(other, percentile) == (
                value if value is None else pytest.approx(value, rel=RELATIVE_ERROR, abs=SMALLEST)
            )
