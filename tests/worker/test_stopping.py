"""Draining, handing back, and what a second request to stop changes."""

from pathlib import Path
from typing import Any

import pytest
import redis
from rq.command import send_shutdown_command

from scripts.fault_table.proxy import Proxy, lose_reply_to
from tests.worker.fakes import ENDLESS, ScriptedRunner, eventually, make_flow, running, sql_outage
from worker.client import submit
from worker.errors import TryLater
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

NEVER = {"max_tokens": 16_000}  # more than any test waits for


def queued(connection: redis.Redis) -> list[str]:
    """Return the ids of the jobs that wait."""
    ids: Any = connection.lrange("rq:queue:default", 0, -1)
    return [job_id.decode() for job_id in ids]


def test_drain_finishes_what_is_held_and_claims_no_more(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, [f"job {number}" for number in range(6)])
    runner = ScriptedRunner()
    runner.may_step.clear()
    with running(make_flow(connection, sqlite_store, runner, max_jobs=4)) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 4)
        worker.flow.worker.stopping.set()
        runner.may_step.set()
        worker.wait()
    assert sqlite_store.states(ids) == dict.fromkeys(ids[:4], JobState.DONE)
    assert queued(connection) == list(ids[4:])


def test_what_is_not_finished_in_time_is_handed_back(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, [{"prompt": f"{ENDLESS} {number}", **NEVER} for number in range(3)])
    runner = ScriptedRunner()
    with running(make_flow(connection, sqlite_store, runner, drain_seconds=0.0)) as worker:
        eventually(lambda: len(runner.generations) == 3)
        worker.stop()
    assert queued(connection) == list(ids)
    epochs = {}
    for job_id in ids:
        detail = sqlite_store.job(job_id)
        assert detail is not None
        assert (detail.state, detail.result) == (JobState.QUEUED, None)
        assert [attempt.state for attempt in detail.attempts] == [AttemptState.REQUEUED]
        epochs[job_id] = detail.epoch
    assert connection.keys("pagemill:leases:*") == []

    with running(make_flow(connection, sqlite_store, name="worker-2", drain_seconds=0.0)) as worker:
        eventually(lambda: set(sqlite_store.states(ids).values()) == {JobState.RUNNING})
        worker.stop()
    for job_id in ids:
        detail = sqlite_store.job(job_id)
        assert detail is not None
        assert detail.epoch > epochs[job_id]
        assert [attempt.worker_name for attempt in detail.attempts] == ["worker-1", "worker-2"]


def test_second_request_does_not_wait_for_the_drain(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, [{"prompt": ENDLESS, **NEVER}])
    runner = ScriptedRunner()
    flow = make_flow(connection, sqlite_store, runner, drain_seconds=3600.0)
    with running(flow) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        flow.worker._request_stop()
        steps = runner.steps
        eventually(lambda: runner.steps > steps + 10)  # it drains
        flow.worker._request_stop()
        worker.wait()
    assert queued(connection) == list(ids)


def test_step_that_hangs_does_not_keep_jobs_from_being_given_back(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    ids = submit(connection, ["one", "two"])
    runner = ScriptedRunner()
    runner.may_step.clear()
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 2)
        worker.flow.worker.handing_back.set()
        worker.flow.worker.stopping.set()
        eventually(lambda: queued(connection) == list(ids))
        assert set(sqlite_store.states(ids).values()) == {JobState.QUEUED}
        runner.may_step.set()  # it comes back when all is over: its results are nobody's
        worker.wait()
    assert set(sqlite_store.states(ids).values()) == {JobState.QUEUED}


def test_stop_during_an_sql_outage_before_attempts_are_recorded(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    flow = make_flow(connection, sqlite_store, drain_seconds=3600.0)
    with running(flow) as worker:
        eventually(lambda: connection.smembers("rq:workers"))
        with sql_outage(sqlite_file):
            ids = submit(connection, ["one", "two"])
            eventually(lambda: flow.progress().held == 2)
            worker.stop()
    assert queued(connection) == list(ids)
    assert sqlite_store.states(ids) == {}


def test_stop_during_an_sql_outage_with_results_in_hand(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    ids = submit(connection, ["one", "two"])
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 2)
        with sql_outage(sqlite_file):
            runner.may_step.set()
            eventually(lambda: runner.steps >= 6)
            with pytest.raises(TryLater, match="gave its jobs back: cannot use the database"):
                worker.stop_at_once()
    assert queued(connection) == list(ids)
    make_flow(connection, sqlite_store, name="worker-2").run(burst=True)
    assert set(sqlite_store.states(ids).values()) == {JobState.DONE}
    detail = sqlite_store.job(ids[0])
    assert detail is not None
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.LOST, AttemptState.DONE]


def test_stop_while_redis_is_away_keeps_results_and_ends(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore
) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    ids = submit(connection, ["one", "two"])
    with running(make_flow(proxied, sqlite_store, runner)) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 2)
        proxy.cut()
        runner.may_step.set()
        eventually(lambda: set(sqlite_store.states(ids).values()) == {JobState.DONE})
        with pytest.raises(TryLater, match="cannot reach Redis"):
            worker.stop_at_once()
    assert len(sqlite_store.results(ids)) == 2


def test_stop_after_a_claim_whose_reply_was_lost(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore
) -> None:
    ids = submit(connection, ["one", "two"])
    lose_reply_to(proxy, connection, "claim")
    with running(make_flow(proxied, sqlite_store)) as worker:
        eventually(lambda: not proxy.lose_replies_to)
        worker.stop()
    assert sqlite_store.states(ids) == {} or set(sqlite_store.states(ids).values()) == {JobState.DONE}
    assert connection.keys("pagemill:leases:*") == []


def listens(connection: redis.Redis) -> bool:
    """Tell whether the worker hears RQ's commands yet."""
    ((_, number),) = connection.pubsub_numsub("rq:pubsub:worker-1")
    return bool(number)


@pytest.fixture
def unheard(connection: redis.Redis) -> None:
    """Wait until a worker of the same name, whose connection a test before broke, hears no more."""
    eventually(lambda: not listens(connection))


@pytest.mark.usefixtures("unheard")
def test_rqs_shutdown_command_drains(connection: redis.Redis, sqlite_store: JobStore) -> None:
    with running(make_flow(connection, sqlite_store)) as worker:
        eventually(lambda: listens(connection))
        send_shutdown_command(connection, "worker-1")
        worker.wait()


@pytest.mark.usefixtures("unheard")
def test_commands_that_are_none_are_ignored(connection: redis.Redis, sqlite_store: JobStore) -> None:
    with running(make_flow(connection, sqlite_store)) as worker:
        eventually(lambda: listens(connection))
        for garbage in (b"\xff", b"[]", b"{}", b"1", b'{"command": "kill-horse"}'):
            assert connection.publish("rq:pubsub:worker-1", garbage) == 1
        send_shutdown_command(connection, "worker-1")
        worker.wait()
