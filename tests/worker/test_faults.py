"""Outages and crashes: nothing is lost, nothing ends twice, the engine steps on."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from rq.job import Job, JobStatus
from sqlalchemy.exc import IntegrityError

from scripts.fault_table.proxy import Proxy, lose_reply_to
from tests.worker.fakes import (
    ENDLESS,
    ScriptedRunner,
    ScriptError,
    answer,
    eventually,
    make_flow,
    running,
    sql_outage,
)
from worker.client import ends, submit
from worker.errors import ExitCode, ServiceUnavailable, TryLater
from worker.queue.connection import connect
from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, JobState, Outcome
from worker.running.flow import Flow
from worker.sql.store import JobStore

T = TypeVar("T")


def all_done(store: JobStore, job_ids: tuple[str, ...]) -> bool:
    states = store.states(job_ids)
    return len(states) == len(job_ids) and set(states.values()) == {JobState.DONE}


def attempts_of(store: JobStore, job_id: str) -> list[AttemptState]:
    detail = store.job(job_id)
    assert detail is not None
    return [attempt.state for attempt in detail.attempts]


def test_results_committed_but_not_acknowledged_are_not_generated_again(
    connection: redis.Redis, sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the worker was killed between its commit and its acknowledgement."""
    ids = submit(connection, [*(f"job {number}" for number in range(5)), {"prompt": "bad", "model": "other"}])

    def refuse(*_: object) -> frozenset[str]:
        raise ServiceUnavailable("cannot reach Redis: it went away")

    with monkeypatch.context() as patch, running(make_flow(connection, sqlite_store)) as first:
        patch.setattr(JobQueue, "acknowledge", refuse)
        eventually(lambda: all_done(sqlite_store, ids[:5]) and sqlite_store.states(ids)[ids[5]] is JobState.FAILED)
        with pytest.raises(TryLater, match="went away"):
            first.stop_at_once()
    assert {Job.fetch(job_id, connection=connection, serializer="json").get_status() for job_id in ids} == {
        JobStatus.QUEUED
    }

    runner = ScriptedRunner()
    make_flow(connection, sqlite_store, runner, name="worker-2").run(burst=True)
    assert runner.steps == 0
    for number, job_id in enumerate(ids[:5]):
        assert attempts_of(sqlite_store, job_id) == [AttemptState.DONE]
        job = Job.fetch(job_id, connection=connection, serializer="json")
        assert job.get_status() is JobStatus.FINISHED
        assert (job.return_value() or {})["text"] == answer(f"job {number}")
    (failed,) = ends(connection, [ids[5]], timeout_seconds=10)
    assert failed.state is JobState.FAILED
    assert (failed.error or "").startswith("model_not_served: model: 'other' is not served here")
    assert len(sqlite_store.results(ids)) == 5


def test_sql_outage_stops_claims_and_holds_results(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    runner = ScriptedRunner(step_seconds=0.002)
    endless = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    flow = make_flow(connection, sqlite_store, runner, max_jobs=8)
    with running(flow) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        with sql_outage(sqlite_file):
            ids = submit(connection, [f"job {number}" for number in range(20)])
            eventually(lambda: flow.progress().held == 8)  # claimed, but SQL cannot record them
            steps = runner.steps
            eventually(lambda: runner.steps > steps + 50)  # the engine goes on
            assert sqlite_store.states(ids) == {}
            assert flow.progress().waiting == {"default": 13}
        eventually(lambda: all_done(sqlite_store, ids))
        assert set(runner.generations.values()) == {1}

        steps = runner.steps
        runner.may_step.clear()
        more = submit(connection, [f"more {number}" for number in range(3)])
        eventually(lambda: len(sqlite_store.states(more)) == 3)  # begun
        with sql_outage(sqlite_file):
            runner.may_step.set()
            eventually(lambda: runner.steps > steps + 50)  # done, but SQL cannot take the results
            assert set(sqlite_store.states(more).values()) == {JobState.RUNNING}
        eventually(lambda: all_done(sqlite_store, more))
        worker.stop_at_once()
    assert attempts_of(sqlite_store, endless[0]) == [AttemptState.REQUEUED]
    assert all(attempts_of(sqlite_store, job_id) == [AttemptState.DONE] for job_id in (*ids, *more))


def test_redis_outage_loses_nothing(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore
) -> None:
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(proxied, sqlite_store, runner, max_jobs=4, beat_seconds=0.1, sweep_seconds=0.1)
    ids = submit(connection, [{"prompt": f"{ENDLESS} {number}", "max_tokens": 300} for number in range(12)])
    with running(flow, burst=True) as worker:
        eventually(lambda: runner.steps > 20)
        for _ in range(3):
            proxy.cut()
            wanted = runner.steps + 20
            eventually(partial(outage_is_long_enough, flow, runner, wanted))
            proxy.mend()
            time.sleep(0.05)
        worker.wait()
    assert all_done(sqlite_store, ids)
    assert set(runner.generations.values()) == {1}
    assert all(attempts_of(sqlite_store, job_id) == [AttemptState.DONE] for job_id in ids)
    assert connection.keys("pagemill:leases:*") == []


def outage_is_long_enough(flow: Flow, runner: ScriptedRunner, steps: int) -> bool:
    """Tell whether the engine stepped on during an outage, or has nothing left to step for."""
    return runner.steps > steps or all(job.request and job.request.finish_reason for job in flow._held.all())


@pytest.mark.parametrize("verb", ["claim", "acknowledge"])
def test_lost_reply_changes_nothing(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore, verb: str
) -> None:
    """A claim whose reply is lost leaves leases behind that nobody knows; they are found and run, once each."""
    ids = submit(connection, [f"job {number}" for number in range(6)])
    runner = ScriptedRunner()
    lose_reply_to(proxy, connection, verb)
    make_flow(proxied, sqlite_store, runner, max_jobs=3).run(burst=True)
    assert proxy.lose_replies_to == []
    assert all_done(sqlite_store, ids)
    assert [attempts_of(sqlite_store, job_id) for job_id in ids] == [[AttemptState.DONE]] * 6
    assert set(runner.generations.values()) == {1}
    assert connection.zcard("rq:finished:default") == 6


def test_lost_reply_of_handing_back_changes_nothing(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore
) -> None:
    ids = submit(connection, [{"prompt": f"{ENDLESS} {number}", "max_tokens": 10_000} for number in range(3)])
    lose_reply_to(proxy, connection, "requeue")
    with running(make_flow(proxied, sqlite_store, drain_seconds=0.0)) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 3)
        worker.stop()
    assert proxy.lose_replies_to == []
    assert set(sqlite_store.states(ids).values()) == {JobState.QUEUED}
    assert connection.lrange("rq:queue:default", 0, -1) == [job_id.encode() for job_id in ids]


def test_queue_that_crashes_and_restarts(tmp_path: Path, sqlite_store: JobStore) -> None:
    """The server is killed with SIGKILL; claims, leases, commands and live streams go on with the next one."""
    with closing(connect(None, tmp_path / "data")) as connection:
        (endless,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
        runner = ScriptedRunner(step_seconds=0.002)
        flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.1)
        with running(flow) as worker:
            eventually(lambda: runner.generations[ENDLESS])
            time.sleep(1.1)  # its append-only file is flushed every second
            os.kill(connection.info("server")["process_id"], signal.SIGKILL)
            ids = retry(lambda: submit(connection, ["one", "two"]))
            eventually(lambda: all_done(sqlite_store, ids))
            channel = f"rq:pubsub:{flow.worker.name}"
            eventually(lambda: connection.publish(channel, f'{{"command": "stop-job", "job_id": "{endless}"}}'))
            eventually(lambda: sqlite_store.states([endless])[endless] is JobState.CANCELLED)
            worker.stop()


def retry(action: Callable[[], T]) -> T:
    """Return what `action` returns once the server is back."""
    results: list[T] = []

    def attempt() -> bool:
        try:
            results.append(action())
        except ServiceUnavailable:
            return False
        return True

    eventually(attempt)
    return results[0]


def test_step_that_fails_starts_over(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, ["one", "two"])
    runner = ScriptedRunner(num_failures=1)
    make_flow(connection, sqlite_store, runner).run(burst=True)
    assert all_done(sqlite_store, ids)
    assert all(attempts_of(sqlite_store, job_id) == [AttemptState.DONE] for job_id in ids)


def test_engine_that_fails_for_good_gives_its_jobs_back(connection: redis.Redis, sqlite_store: JobStore) -> None:
    ids = submit(connection, ["one", "two"])
    with pytest.raises(TryLater) as caught:
        make_flow(connection, sqlite_store, ScriptedRunner(num_failures=1000)).run(burst=True)
    assert caught.value.exit_code is ExitCode.TRY_LATER
    assert str(caught.value) == (
        "the worker stopped and gave its jobs back: the model fails on any step: the device is on fire"
    )
    assert set(sqlite_store.states(ids).values()) == {JobState.QUEUED}
    assert [attempts_of(sqlite_store, job_id) for job_id in ids] == [[AttemptState.REQUEUED]] * 2
    assert connection.lrange("rq:queue:default", 0, -1) == [job_id.encode() for job_id in ids]
    make_flow(connection, sqlite_store, name="worker-2").run(burst=True)
    assert all_done(sqlite_store, ids)


@pytest.mark.parametrize("verb", ["begin_attempts", "finish_attempts"])
def test_job_that_sql_refuses_harms_no_other(
    connection: redis.Redis, sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    bad, good = submit(connection, ["bad", "good"])
    real = getattr(JobStore, verb)

    def fragile(store: JobStore, items: Sequence[Any], *rest: Any) -> Any:
        for item in items:
            claim = item.claim if isinstance(item, Outcome) else item
            if claim.job_id == bad and getattr(item, "state", None) is not AttemptState.FAILED:
                raise IntegrityError("INSERT", {}, ScriptError("constraint"))
        return real(store, items, *rest)

    monkeypatch.setattr(JobStore, verb, fragile)
    make_flow(connection, sqlite_store).run(burst=True)
    detail = sqlite_store.job(bad)
    assert detail is not None
    if verb == "begin_attempts":
        assert (detail.state, detail.error_code) == (JobState.DEAD, "internal_error")
    else:
        assert (detail.state, detail.error_code) == (JobState.FAILED, "result_refused")
    assert "IntegrityError" in (detail.error_message or "")
    assert Job.fetch(bad, connection=connection, serializer="json").get_status() is JobStatus.FAILED
    assert sqlite_store.states([good]) == {good: JobState.DONE}


def test_full_queue_is_drained_by_a_worker_that_starts_on_it(tmp_path: Path, sqlite_store: JobStore) -> None:
    """Registration and maintenance are refused there; claims, leases and acknowledgements are not."""
    with closing(connect(None, tmp_path / "data")) as connection:
        ids = submit(connection, [f"{number} " + "word " * 200 for number in range(50)])
        connection.config_set("maxmemory", connection.info("memory")["used_memory"] // 2)
        make_flow(connection, sqlite_store, beat_seconds=0.1).run(burst=True)
        assert all_done(sqlite_store, ids)


def test_redis_that_is_gone_at_the_start(proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore) -> None:
    flow = make_flow(proxied, sqlite_store)
    proxy.cut()
    with pytest.raises(ServiceUnavailable, match="cannot reach Redis"):
        flow.run(burst=True)
    assert sqlite_store.workers()[0].stopped_at is not None
    with pytest.raises(ServiceUnavailable, match="cannot reach Redis"):
        make_flow(proxied, sqlite_store)


def test_sql_that_is_gone_at_the_start(connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path) -> None:
    with sql_outage(sqlite_file), pytest.raises(ServiceUnavailable, match="locked"):
        make_flow(connection, sqlite_store).run(burst=True)
    assert connection.smembers("rq:workers") == set()
