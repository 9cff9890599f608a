"""Cancelling a job in each phase of its life, by Pagemill's and by RQ's means."""

import threading
from pathlib import Path

import redis
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus

from engine.config import EngineConfig
from tests.worker.fakes import ENDLESS, ScriptedRunner, encode, eventually, make_flow, running, sql_outage
from worker.client import submit
from worker.jobs import PromptJob
from worker.queue.access import CANCELLING_KEY, CancelOutcome, QueueAccess
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore


def assert_cancelled(connection: redis.Redis, store: JobStore, job_id: str) -> None:
    eventually(lambda: Job.fetch(job_id, connection=connection, serializer="json").get_status() is JobStatus.CANCELED)
    detail = store.job(job_id)
    assert detail is not None
    assert detail.state is JobState.CANCELLED
    assert [attempt.state for attempt in detail.attempts] == [AttemptState.CANCELLED]
    assert connection.zcard(CANCELLING_KEY) == 0


def test_cancel_while_it_runs_keeps_its_output(connection: redis.Redis, sqlite_store: JobStore) -> None:
    cancelled, other = submit(connection, [{"prompt": f"{ENDLESS} {name}", "max_tokens": 2000} for name in "ab"])
    runner = ScriptedRunner(step_seconds=0.001)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: len(runner.generations) == 2)
        assert QueueAccess(connection).cancel(cancelled).outcome is CancelOutcome.CANCELLING
        assert_cancelled(connection, sqlite_store, cancelled)
        eventually(lambda: sqlite_store.states([other])[other] is JobState.DONE)
        worker.stop()
    detail = sqlite_store.job(cancelled)
    assert detail is not None
    assert detail.result is not None
    assert detail.result.finish_reason == "cancelled"
    assert detail.result.text == ("0123456789" * 200)[: detail.result.completion_tokens]
    assert 0 < detail.result.completion_tokens < 2000
    assert detail.stats is not None


def test_cancel_before_sql_has_it(connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path) -> None:
    flow = make_flow(connection, sqlite_store)
    with running(flow) as worker:
        eventually(lambda: connection.smembers("rq:workers"))
        with sql_outage(sqlite_file):
            (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
            eventually(lambda: flow.progress().held)
            QueueAccess(connection).cancel(job_id)
            held = flow._held.find(job_id)
            assert held is not None
            eventually(lambda: held.cancel_requested)
        assert_cancelled(connection, sqlite_store, job_id)
        worker.stop()
    assert sqlite_store.results([job_id]) == {}


def test_cancel_while_it_is_tokenized(connection: redis.Redis, sqlite_store: JobStore) -> None:
    may_encode = threading.Event()
    encoded: list[PromptJob] = []

    def slow(job: PromptJob) -> list[int]:
        encoded.append(job)
        assert may_encode.wait(30)
        return encode(job)

    runner = ScriptedRunner()
    ids = submit(connection, [{"prompt": f"{ENDLESS} {name}", "max_tokens": 16_000} for name in "ab"])
    flow = make_flow(connection, sqlite_store, runner, encode=slow)
    with running(flow) as worker:
        eventually(lambda: len(sqlite_store.states(ids)) == 2)
        for job_id in ids:
            QueueAccess(connection).cancel(job_id)
        eventually(lambda: all(job.cancel_requested for job in flow._held.all()))
        may_encode.set()
        for job_id in ids:  # the first was being tokenized, the second waited for it
            assert_cancelled(connection, sqlite_store, job_id)
        worker.stop()
    assert not runner.generations
    assert len(encoded) == 1


def test_cancel_while_it_waits_within_the_engine(connection: redis.Redis, sqlite_store: JobStore) -> None:
    one_at_a_time = EngineConfig(num_blocks=4096, max_model_len=16_384, block_size=16, max_num_seqs=1, token_budget=64)
    runner = ScriptedRunner(step_seconds=0.001)
    jobs = [{"prompt": f"{ENDLESS} {name}", "max_tokens": 16_000} for name in ("first", "waiting")]
    first, waiting = submit(connection, jobs)
    flow = make_flow(connection, sqlite_store, runner, config=one_at_a_time)
    with running(flow) as worker:
        eventually(lambda: len(flow._held) == 2 and all(job.request is not None for job in flow._held.all()))
        eventually(lambda: runner.generations)
        assert QueueAccess(connection).cancel(waiting).outcome is CancelOutcome.CANCELLING
        assert_cancelled(connection, sqlite_store, waiting)
        assert sqlite_store.states([first]) == {first: JobState.RUNNING}
        worker.stop_at_once()
    assert dict(runner.generations) == {f"{ENDLESS} first": 1}


def test_cancel_after_it_finished_changes_nothing(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path
) -> None:
    runner = ScriptedRunner()
    runner.may_step.clear()
    (job_id,) = submit(connection, ["hello"])
    flow = make_flow(connection, sqlite_store, runner)
    with running(flow) as worker:
        eventually(lambda: sqlite_store.states([job_id]))
        with sql_outage(sqlite_file):
            runner.may_step.set()
            eventually(lambda: flow._held.all() and not flow._held.unfinished())
            assert QueueAccess(connection).cancel(job_id).outcome is CancelOutcome.CANCELLING
            held = flow._held.find(job_id)
            assert held is not None
            eventually(lambda: held.cancel_requested)
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.DONE)
        worker.stop()
    assert QueueAccess(connection).cancel(job_id).outcome is CancelOutcome.NOT_CANCELLABLE
    assert connection.zcard(CANCELLING_KEY) == 0
    assert Job.fetch(job_id, connection=connection, serializer="json").get_status() is JobStatus.FINISHED


def test_cancel_of_a_job_that_was_handed_back_holds_for_the_next_worker(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    with running(make_flow(connection, sqlite_store)) as worker:
        eventually(lambda: sqlite_store.states([job_id]))
        worker.flow._live.stop()
        for thread in threading.enumerate():
            if thread.name == "pagemill-live":
                thread.join()
        QueueAccess(connection).cancel(job_id)
        worker.stop_at_once()
    assert sqlite_store.states([job_id]) == {job_id: JobState.QUEUED}
    with running(make_flow(connection, sqlite_store, name="worker-2")) as worker:
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.CANCELLED)
        worker.stop()


def test_rqs_command_stops_one_job_of_many(connection: redis.Redis, sqlite_store: JobStore) -> None:
    stopped, other = submit(connection, [{"prompt": f"{ENDLESS} {name}", "max_tokens": 2000} for name in "ab"])
    runner = ScriptedRunner(step_seconds=0.001)
    with running(make_flow(connection, sqlite_store, runner)) as worker:
        eventually(lambda: len(runner.generations) == 2)
        send_stop_job_command(connection, stopped)
        assert_cancelled(connection, sqlite_store, stopped)
        eventually(lambda: sqlite_store.states([other])[other] is JobState.DONE)
        worker.stop()


def test_rqs_cancel_of_a_running_job_is_noticed(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    with running(make_flow(connection, sqlite_store, runner, beat_seconds=0.1)) as worker:
        eventually(lambda: runner.generations[ENDLESS])
        Job.fetch(job_id, connection=connection, serializer="json").cancel()
        eventually(lambda: sqlite_store.states([job_id])[job_id] is JobState.CANCELLED)
        worker.stop()
    assert Job.fetch(job_id, connection=connection, serializer="json").get_status() is JobStatus.CANCELED
