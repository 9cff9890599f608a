"""What attempts cost in SQL, and the workers' accounts beside it. On both databases."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.sql.builders import claim_of, outcome_of, worker_of
from worker.records import AttemptState, AttemptUsage
from worker.sql.database import reading
from worker.sql.fleet import WorkerCounters
from worker.sql.lookups import AttemptDetail
from worker.sql.store import JobStore
from worker.sql.worker_hours import AccountEntry, WorkerHour

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
USAGE = AttemptUsage(
    engine_seconds=18.0,
    wasted_engine_seconds=2.0,
    kv_block_seconds_share=40.5,
    computed_tokens=900,
    recomputed_tokens=100,
    tokenized_ms=3.0,
    admitted_ms=4.5,
    first_token_ms=80.0,
    last_token_ms=900.0,
    committed_ms=905.0,
)
WASTED = replace(USAGE, wasted_engine_seconds=18.0)  # what leaves no result was all in vain
ACCOUNT = WorkerHour(HOUR, 3600.0, 30.0, 2.0, 3500.0, 60.0, 10.0, 50.0, 5.0, 145.0, 1500, 100)


def attempts_of(store: JobStore, job_id: str) -> tuple[AttemptDetail, ...]:
    job = store.job(job_id)
    assert job is not None
    return job.attempts


def test_usage_is_written_with_the_end_and_priced(store: JobStore) -> None:
    store.register_worker(worker_of("w1", price_per_engine_hour=2.0, price_currency="EUR"))
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    (running,) = attempts_of(store, "a")
    assert (running.usage, running.cost, running.currency) == (None, None, None)
    store.finish_attempts([outcome_of(claim, usage=USAGE)])
    (done,) = attempts_of(store, "a")
    assert done.usage == USAGE
    assert done.cost == pytest.approx(0.01)
    assert done.currency == "EUR"


def test_without_a_price_there_is_no_cost(store: JobStore) -> None:
    store.register_worker(worker_of("w1"))
    for job_id, worker_name in (("a", "w1"), ("b", "unknown")):
        claim = claim_of(job_id)
        store.begin_attempts([claim], worker_name)
        store.finish_attempts([outcome_of(claim, usage=USAGE)])
        (attempt,) = attempts_of(store, job_id)
        assert (attempt.usage, attempt.cost) == (USAGE, None)


@pytest.mark.parametrize("state", [AttemptState.FAILED, AttemptState.REQUEUED, AttemptState.LOST])
def test_attempt_without_a_result_is_wasted(store: JobStore, state: AttemptState) -> None:
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, state, usage=USAGE)])
    assert [attempt.usage for attempt in attempts_of(store, "a")] == [WASTED]


def test_fenced_attempt_is_charged(store: JobStore) -> None:
    old, new = claim_of("a", 1), claim_of("a", 2)
    store.begin_attempts([old], "w1")
    store.begin_attempts([new], "w2")
    for _ in range(2):
        assert store.finish_attempts([outcome_of(old, usage=USAGE)]) == {"a"}
        assert [attempt.usage for attempt in attempts_of(store, "a")] == [WASTED, None]


def test_attempt_that_others_ended_is_charged_once(store: JobStore) -> None:
    """A later claim notes that it is lost, or somebody cancels it, and does not know what it cost."""
    old, new = claim_of("a", 1), claim_of("a", 2)
    store.begin_attempts([old], "w1")
    store.begin_attempts([new], "w2")
    assert [attempt.usage for attempt in attempts_of(store, "a")] == [None, None]
    lost = outcome_of(old, AttemptState.LOST, usage=USAGE)
    assert store.finish_attempts([lost]) == frozenset()
    assert attempts_of(store, "a")[0].usage == WASTED
    store.finish_attempts([replace(lost, usage=AttemptUsage())])
    assert attempts_of(store, "a")[0].usage == WASTED

    cancelled = claim_of("b")
    store.begin_attempts([cancelled], "w1")
    store.cancel_unheld(["b"])
    store.finish_attempts([outcome_of(cancelled, AttemptState.CANCELLED, usage=USAGE)])
    (attempt,) = attempts_of(store, "b")
    assert (attempt.state, attempt.usage) == (AttemptState.LOST, WASTED)


def test_accounts_are_written_in_the_place_of_earlier_ones(store: JobStore) -> None:
    store.register_worker(worker_of("w1"))
    later = replace(ACCOUNT, hour=HOUR + timedelta(hours=1), idle_seconds=3470.0, engine_seconds=60.0)
    store.heartbeat_worker("w1", WorkerCounters(), timedelta(), (replace(ACCOUNT, wall_seconds=5.0),))
    store.heartbeat_worker("w1", WorkerCounters(), timedelta(), (ACCOUNT, later))
    store.heartbeat_worker("w1", WorkerCounters(), timedelta(), (replace(ACCOUNT, wall_seconds=5.0),))  # overtaken
    store.heartbeat_worker("unknown", WorkerCounters(), timedelta(), (ACCOUNT,))
    assert store.worker_hours("w1") == (ACCOUNT, later)
    assert [worker.busy_share for worker in store.workers()] == [pytest.approx((30.0 + 60.0) / 7200.0)]
    assert store.worker_hours("unknown") == ()
    store.register_worker(worker_of("w1"))  # anew
    assert store.worker_hours("w1") == ()
    assert [worker.busy_share for worker in store.workers()] == [None]


def test_account_is_written_with_the_ends_of_attempts(store: JobStore) -> None:
    store.register_worker(worker_of("w1"))
    claim = claim_of("a")
    store.begin_attempts([claim], "w1")
    store.finish_attempts([outcome_of(claim, usage=USAGE)], AccountEntry("w1", (ACCOUNT,)))
    assert store.worker_hours("w1") == (ACCOUNT,)
    store.finish_attempts([outcome_of(claim, usage=USAGE)], AccountEntry("unknown", (ACCOUNT,)))
    assert store.worker_hours("unknown") == ()


def test_examples_of_the_documentation_run(store: JobStore, database: Engine) -> None:
    store.register_worker(worker_of("w1", price_per_engine_hour=2.0, price_currency="EUR"))
    claim = claim_of("a", tenant="acme")
    store.begin_attempts([claim], "w1")
    account = replace(ACCOUNT, engine_seconds=18.0, idle_seconds=3512.0)
    store.finish_attempts([outcome_of(claim, usage=USAGE)], AccountEntry("w1", (account,)))
    page = (Path(__file__).resolve().parents[2] / "docs" / "ledger.md").read_text()
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    with reading(database) as connection:
        adding_up, costs, idleness = (
            connection.execute(text(query)).one() for query in block.split(";") if query.strip()
        )
    assert (adding_up.charged, adding_up.wall, adding_up.unattributed) == (18.0, 3600.0, 0.0)
    assert (costs.tenant, costs.price_currency, costs.engine_seconds) == ("acme", "EUR", 18.0)
    assert (costs.cost, costs.wasted_cost) == (pytest.approx(0.01), pytest.approx(2.0 * 2.0 / 3600))
    assert (idleness.day, idleness.cost) == ("2026-03-01", pytest.approx(3582.0 * 2.0 / 3600))


def test_balance_of_a_worker(store: JobStore) -> None:
    store.register_worker(worker_of("w1", price_per_engine_hour=2.0, price_currency="EUR"))
    store.register_worker(worker_of("w2"))  # of an older version: it keeps no account
    store.heartbeat_worker("w1", WorkerCounters(), timedelta(), (ACCOUNT,))
    (balance,) = store.balances()
    assert (balance.attempts, balance.attempt_engine_seconds, balance.unattributed_engine_seconds) == (0, 0.0, 30.0)
    for job_id in ("a", "b"):
        claim = claim_of(job_id)
        store.begin_attempts([claim], "w1")
        store.finish_attempts([outcome_of(claim, usage=replace(USAGE, engine_seconds=12.0))])
    (balance,) = store.balances()
    assert (balance.attempts, balance.attempt_engine_seconds, balance.unattributed_engine_seconds) == (2, 24.0, 6.0)
    assert balance.unexplained_share == pytest.approx(6.0 / 3600.0)
    assert (balance.attempt_kv_block_seconds, balance.kv_block_seconds_held) == (81.0, 50.0)
    assert balance.cost == pytest.approx(2.0)
    assert balance.currency == "EUR"
    assert balance.attempt_cost == pytest.approx(24.0 / 3600 * 2.0)
    assert (balance.computed_tokens, balance.recomputed_tokens) == (1500, 100)
    assert store.balances(balance.last_heartbeat_at + timedelta(seconds=1)) == ()
