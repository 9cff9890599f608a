"""The ledger of a worker: what its attempts were charged, and its own account, are its wall time; whatever happens."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import redis

from engine.step_plan import Sampled, SchedulerOutput
from tests.worker.fakes import CONFIG, ENDLESS, ScriptedRunner, ScriptError, decode, eventually, make_flow, running
from tests.worker.test_leases import expire_leases
from worker.client import submit
from worker.errors import TryLater
from worker.queue.access import QueueAccess
from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, AttemptUsage, JobState
from worker.sql.balance import WorkerBalance
from worker.sql.lookups import AttemptDetail
from worker.sql.store import JobStore

DOCUMENT = "The document that all of the questions are about; it fills several blocks. " * 3


def balance_of(store: JobStore, name: str = "worker-1") -> WorkerBalance:
    """Return a worker's balance, which must add up within 1 %, with nothing unattributed."""
    (balance,) = (balance for balance in store.balances() if balance.worker == name)
    assert abs(balance.unexplained_share) < 0.01
    assert balance.unattributed_engine_seconds == pytest.approx(0.0, abs=1e-6)
    assert balance.attempt_kv_block_seconds == pytest.approx(balance.kv_block_seconds_held)
    account = balance.engine_seconds + balance.idle_seconds + balance.loading_seconds + balance.overhead_seconds
    assert account == pytest.approx(balance.wall_seconds)
    blocks = balance.kv_block_seconds_held + balance.kv_block_seconds_cached + balance.kv_block_seconds_free
    assert blocks == pytest.approx(balance.num_blocks * balance.wall_seconds)
    return balance


def attempts_of(store: JobStore, job_id: str) -> list[tuple[AttemptDetail, AttemptUsage]]:
    detail = store.job(job_id)
    assert detail is not None
    usages = [(attempt, attempt.usage) for attempt in detail.attempts]
    return [(attempt, usage) for attempt, usage in usages if usage is not None]


def num_attempts(store: JobStore, job_id: str) -> int:
    detail = store.job(job_id)
    assert detail is not None
    return len(detail.attempts)


def usage_of(store: JobStore, job_id: str, state: AttemptState = AttemptState.DONE) -> AttemptUsage:
    """Return what a job's only attempt cost, which ended so."""
    ((attempt, usage),) = attempts_of(store, job_id)
    assert attempt.state is state
    return usage


def test_attempts_and_the_workers_own_account_are_its_wall_time(queue_connection: redis.Redis, store: JobStore) -> None:
    prompts = [f"{DOCUMENT}{number}" for number in range(40)]
    ids = submit(queue_connection, prompts)
    flow = make_flow(queue_connection, store, ScriptedRunner(step_seconds=0.001), beat_seconds=0.05)
    with running(flow) as worker:
        eventually(lambda: set(store.states(ids).values()) == {JobState.DONE})
        worker.stop()
    balance = balance_of(store)
    assert balance.attempts == 40
    assert balance.idle_seconds > 0
    assert balance.wasted_engine_seconds == balance.recomputed_tokens == 0
    usages = [usage_of(store, job_id) for job_id in ids]
    assert sum(usage.engine_seconds for usage in usages) == pytest.approx(balance.engine_seconds)
    assert sum(usage.computed_tokens for usage in usages) == balance.computed_tokens
    unsplit = 0.0
    for job_id in ids:
        detail = store.job(job_id)
        assert detail is not None
        assert detail.stats is not None
        unsplit += detail.stats.kv_block_seconds
    assert balance.kv_block_seconds_held < unsplit  # the document's blocks were shared


def test_phases_of_a_job_are_in_the_order_of_its_life(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, ["What is a block table?"])
    make_flow(connection, sqlite_store).run(burst=True)
    usage = usage_of(sqlite_store, job_id)
    phases = (usage.tokenized_ms, usage.admitted_ms, usage.first_token_ms, usage.last_token_ms, usage.committed_ms)
    reached = [phase for phase in phases if phase is not None]
    assert len(reached) == len(phases)
    assert reached[0] > 0
    assert reached == sorted(reached)


def test_job_that_never_reaches_the_engine_costs_nothing(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (refused,) = submit(connection, [{"prompt": "x" * 20_000}])
    make_flow(connection, sqlite_store).run(burst=True)
    usage = usage_of(sqlite_store, refused, AttemptState.FAILED)
    assert (usage.engine_seconds, usage.computed_tokens, usage.admitted_ms) == (0.0, 0, None)
    assert usage.tokenized_ms is not None
    balance_of(sqlite_store)


def test_preempted_work_is_wasted_and_charged(connection: redis.Redis, sqlite_store: JobStore) -> None:
    config = replace(CONFIG, num_blocks=40, enable_prefix_caching=False)
    ids = submit(connection, [{"prompt": f"{ENDLESS} {number}", "max_tokens": 300} for number in range(4)])
    make_flow(connection, sqlite_store, config=config).run(burst=True)
    balance = balance_of(sqlite_store)
    assert balance.recomputed_tokens > 0
    usages = [usage_of(sqlite_store, job_id) for job_id in ids]
    assert sum(usage.recomputed_tokens for usage in usages) == balance.recomputed_tokens
    assert sum(usage.wasted_engine_seconds for usage in usages) == pytest.approx(balance.wasted_engine_seconds)
    assert 0 < balance.wasted_engine_seconds < balance.engine_seconds


def test_steps_that_fail_are_charged(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, ["one", "two"])
    make_flow(connection, sqlite_store, ScriptedRunner(num_failures=1, step_seconds=0.01)).run(burst=True)
    balance = balance_of(sqlite_store)
    assert 0 < balance.wasted_engine_seconds < balance.engine_seconds
    assert all(usage_of(sqlite_store, job_id).wasted_engine_seconds > 0 for job_id in ids)


def test_the_account_of_an_engine_that_breaks_is_kept(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, ["one"])
    with pytest.raises(TryLater):
        make_flow(connection, sqlite_store, ScriptedRunner(num_failures=1000, step_seconds=0.01)).run(burst=True)
    balance = balance_of(sqlite_store)
    usage = usage_of(sqlite_store, job_id, AttemptState.REQUEUED)
    assert usage.engine_seconds == usage.wasted_engine_seconds == pytest.approx(balance.engine_seconds)
    assert balance.engine_seconds > 0


def test_a_culprit_pays_for_what_it_broke(connection: redis.Redis, sqlite_store: JobStore) -> None:
    class Poisoned(ScriptedRunner):
        def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
            if any(decode(share.request.token_ids).startswith("bad") for share in plan.scheduled):
                raise ScriptError("poisoned")
            return super().run(plan)

    bad, good = submit(connection, [{"prompt": "bad", "max_retries": 0}, "good"])
    make_flow(connection, sqlite_store, Poisoned()).run(burst=True)
    balance_of(sqlite_store)
    usage = usage_of(sqlite_store, bad, AttemptState.FAILED)
    assert usage.wasted_engine_seconds == usage.engine_seconds > 0
    assert usage_of(sqlite_store, good).wasted_engine_seconds > 0


def test_an_attempt_that_is_handed_back_is_charged_and_wasted(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    with running(make_flow(connection, sqlite_store, runner, drain_seconds=0.0)) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        worker.stop()
    usage = usage_of(sqlite_store, job_id, AttemptState.REQUEUED)
    assert usage.wasted_engine_seconds == usage.engine_seconds > 0
    assert usage.kv_block_seconds_share > 0  # though it held its blocks to the end
    balance_of(sqlite_store)


def test_a_cancelled_jobs_output_is_no_waste(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        QueueAccess(connection).cancel(job_id)
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.CANCELLED)
        worker.stop()
    usage = usage_of(sqlite_store, job_id, AttemptState.CANCELLED)
    assert usage.engine_seconds > usage.wasted_engine_seconds == 0.0
    balance_of(sqlite_store)


def test_a_fenced_attempt_is_charged_and_wasted(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 20}])
    slow = ScriptedRunner()
    slow.may_step.clear()
    first = make_flow(connection, sqlite_store, slow, sweep_seconds=60.0)
    with running(first) as loser:
        eventually(lambda: first.progress().running == 1)
        expire_leases(connection)
        make_flow(connection, sqlite_store, name="worker-2").run(burst=True)
        slow.may_step.set()
        loser.stop()
    (fenced, lost), (done, useful) = attempts_of(sqlite_store, job_id)
    assert (fenced.error_code, done.state) == ("fenced", AttemptState.DONE)
    assert lost.wasted_engine_seconds == lost.engine_seconds > 0
    assert useful.wasted_engine_seconds == 0
    balance_of(sqlite_store, "worker-1")
    balance_of(sqlite_store, "worker-2")


def test_an_attempt_that_another_worker_took_over_is_charged(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """The successor has noted its end in SQL before it ends here, and does not know what it cost."""
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 20}])
    runner = ScriptedRunner()
    runner.may_step.clear()
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=60.0)
    with running(flow) as worker:
        eventually(lambda: flow.progress().running == 1)
        expire_leases(connection)
        JobQueue(connection, "sweeper", 30.0).sweep(["default"])
        eventually(lambda: num_attempts(sqlite_store, job_id) == 2)
        runner.may_step.set()
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.DONE)
        worker.stop()
    (lost, wasted), (done, _) = attempts_of(sqlite_store, job_id)
    assert (lost.state, done.state) == (AttemptState.LOST, AttemptState.DONE)
    assert wasted.wasted_engine_seconds == wasted.engine_seconds > 0
    balance_of(sqlite_store)
