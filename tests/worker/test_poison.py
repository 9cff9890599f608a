"""A job that ends workers: it alone is dead-lettered, and nobody else suffers."""

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from engine.step_plan import Sampled, SchedulerOutput
from tests.worker.crashing_worker import MARKER
from tests.worker.fakes import ENDLESS, ScriptedRunner, answer, decode, eventually, make_flow, running
from tests.worker.test_leases import LEASES, attempts_of, expire_leases, leases
from tests.worker.test_parts import ROOT
from worker.client import submit
from worker.errors import ExitCode
from worker.queue.embedded import embedded_url
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import Suspects
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

SUPERVISED = """
import sys
from pathlib import Path
from worker.running.supervisor import Supervisor
sys.exit(Supervisor([sys.executable, "-m", "tests.worker.crashing_worker", *sys.argv[1:]], Path(sys.argv[3])).run())
"""
SUSPECTS = "pagemill:suspects:default"


@dataclass
class WatchedRunner(ScriptedRunner):
    """Remembers which prompts were in its steps together."""

    companies: list[set[str]] = field(default_factory=list)

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        requests = [share.request for share in plan.scheduled]
        self.companies.append({decode(request.token_ids[: request.num_prompt_tokens]) for request in requests})
        return super().run(plan)


def run_supervised(data_dir: Path, sqlite_file: Path, embedded_data_dir: Path) -> int:
    """Run workers until the queue is empty; return the exit code."""
    arguments = (embedded_url(embedded_data_dir), f"sqlite:///{sqlite_file}", str(data_dir))
    return subprocess.run([sys.executable, "-c", SUPERVISED, *arguments], cwd=ROOT, check=False).returncode


def test_only_the_culprit_of_32_is_dead_after_three_crashes(
    connection: redis.Redis, sqlite_store: JobStore, sqlite_file: Path, tmp_path: Path, embedded_data_dir: Path
) -> None:
    prompts = [f"job {number}" for number in range(32)]
    prompts[17] = f"{MARKER} seventeen"
    ids = submit(connection, prompts)
    assert run_supervised(tmp_path, sqlite_file, embedded_data_dir) == ExitCode.OK

    culprit, innocents = ids[17], [*ids[:17], *ids[18:]]
    states = sqlite_store.states(ids)
    assert states[culprit] is JobState.DEAD
    assert {states[job_id] for job_id in innocents} == {JobState.DONE}
    details = [sqlite_store.job(job_id) for job_id in innocents]
    assert {detail.retry_count for detail in details if detail} == {0}
    assert {detail.attempts[-1].state for detail in details if detail} == {AttemptState.DONE}

    dead = sqlite_store.job(culprit)
    assert dead is not None
    assert dead.error_code == "poison"
    diagnosis = json.loads(dead.diagnosis or "")
    assert diagnosis["payload"]["prompt"] == prompts[17]
    assert [crash["signal"] for crash in diagnosis["crashes"]] == [signal.SIGKILL] * 3
    first, second, third = [crash["num_suspects"] for crash in diagnosis["crashes"]]
    assert second <= math.isqrt(first) + 2
    assert third == 1
    assert len({worker["name"] for worker in diagnosis["workers"]}) == 3
    assert {attempt.state for attempt in dead.attempts} == {AttemptState.LOST}
    assert len(dead.attempts) == 3

    assert connection.zrange("rq:failed:default", 0, -1) == [culprit.encode()]
    assert connection.llen("pagemill:dead:default") == 1
    assert connection.exists(SUSPECTS) == connection.zcard("pagemill:leases:default") == 0


@contextmanager
def suspected(connection: redis.Redis, store: JobStore, num_jobs: int) -> Iterator[tuple[list[str], ScriptedRunner]]:
    """Give jobs that a worker runs, whose leases ran out and were swept; the worker is cut off until the block ends."""
    ids = list(submit(connection, [{"prompt": f"{ENDLESS} {number}", "max_tokens": 500} for number in range(num_jobs)]))
    runner = ScriptedRunner(step_seconds=0.001)
    cut_off = make_flow(
        *(connection, store, runner), name="cut-off", max_jobs=num_jobs, sweep_seconds=60.0, beat_seconds=10.0
    )
    with running(cut_off) as worker:
        eventually(lambda: len(runner.generations) == num_jobs)
        runner.may_step.clear()
        for member in leases(connection):
            if member.decode().partition(":")[0] in ids:
                connection.zadd(LEASES, {member.decode(): 1.0})
        JobQueue(connection, "sweeper", 30.0).sweep(["default"])
        yield ids, runner
        runner.may_step.set()
        eventually(lambda: not len(cut_off._held))
        worker.stop()


def test_suspects_run_in_groups_with_nothing_beside_them(connection: redis.Redis, sqlite_store: JobStore) -> None:
    with suspected(connection, sqlite_store, 9) as (ids, _):
        later = submit(connection, ["later 1", "later 2"])
        runner = WatchedRunner()
        make_flow(connection, sqlite_store, runner, name="worker-2").run(burst=True)
        assert set(sqlite_store.states([*ids, *later]).values()) == {JobState.DONE}
        groups = [{f"{ENDLESS} {number}" for number in group} for group in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
        allowed = [*groups, {"later 1", "later 2"}]
        assert all(any(company <= group for group in allowed) for company in runner.companies)
    assert {attempts_of(sqlite_store, job_id)[-1][:2] for job_id in ids} == {("worker-2", AttemptState.DONE)}


def test_busy_worker_gives_its_jobs_back_for_suspects(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (own,) = submit(connection, [{"prompt": f"{ENDLESS} own", "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    busy = make_flow(
        connection,
        sqlite_store,
        runner,
        name="busy",
        max_jobs=1,
        lease_seconds=1.0,
        beat_seconds=0.1,
        sweep_seconds=0.05,
    )
    with running(busy) as worker:
        eventually(lambda: runner.generations[f"{ENDLESS} own"])
        with suspected(connection, sqlite_store, 1) as (ids, _):
            eventually(lambda: sqlite_store.states(ids)[ids[0]] is JobState.DONE)
        eventually(lambda: runner.generations[f"{ENDLESS} own"] == 2)
        worker.stop_at_once()
    assert attempts_of(sqlite_store, own)[0] == ("busy", AttemptState.REQUEUED, None)


def silence(connection: redis.Redis) -> tuple[str, ...]:
    """Let all leases run out and be swept; a beat may come in between. Return the ids of the jobs."""
    expire_leases(connection)
    return JobQueue(connection, "sweeper", 30.0).sweep(["default"])


def test_worker_that_lives_takes_the_suspicion_back(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """A network cut convicts nobody: not even of jobs that have been alone in two crashes."""
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": 16_000}])
    runner = ScriptedRunner(step_seconds=0.001)
    flow = make_flow(connection, sqlite_store, runner, beat_seconds=0.05, sweep_seconds=60.0)
    with running(flow) as worker:
        for cut in range(4):
            eventually(lambda cut=cut: runner.generations[ENDLESS] == cut + 1)  # type: ignore[misc]
            eventually(lambda: silence(connection))
        eventually(lambda: runner.generations[ENDLESS] == 5)
        assert connection.hget(f"rq:job:{job_id}", "pagemill_crashes") is None
        worker.stop_at_once()
    assert sqlite_store.states([job_id]) == {job_id: JobState.QUEUED}


def test_silence_convicts_only_after_patience(connection: redis.Redis, sqlite_store: JobStore) -> None:
    (job_id,) = submit(connection, [answer("x")])
    connection.hset(f"rq:job:{job_id}", mapping={"pagemill_crashes": "2", "pagemill_crash_log": "{}"})
    connection.lpop("rq:queue:default")
    connection.rpush(SUSPECTS, job_id)
    queue, sweeper = JobQueue(connection, "silent", 30.0), JobQueue(connection, "sweeper", 30.0)
    with suspects_of(connection, queue) as claim:
        (claimed,) = claim()
        member = f"{job_id}:{claimed.execution_id}"
        connection.zadd("pagemill:leases:default", {member: time.time() - 60})
        assert sweeper.sweep(["default"]) == ()
        assert queue.extend([claimed]) == frozenset()  # it was only cut off, and goes on
        connection.zadd("pagemill:leases:default", {member: time.time() - 600})
        assert sweeper.sweep(["default"]) == (job_id,)
    make_flow(connection, sqlite_store).run(burst=True)
    assert sqlite_store.states([job_id]) == {job_id: JobState.DEAD}


@contextmanager
def suspects_of(connection: redis.Redis, queue: JobQueue) -> Iterator[Any]:
    """Give a way to claim suspects for a worker; its duty ends with the block."""
    suspects = Suspects(connection, queue.worker_name, queue.lease_seconds)

    def claim() -> Any:
        assert suspects.seek_duty(["default"])
        return suspects.claim().claims

    yield claim
    suspects.end_duty()


def test_job_that_had_ended_is_acknowledged_not_convicted(connection: redis.Redis, sqlite_store: JobStore) -> None:
    """Its worker died for the third time between the commit of its result and its acknowledgement."""
    (job_id,) = submit(connection, ["x"])
    make_flow(connection, sqlite_store).run(burst=True)
    connection.zrem("rq:finished:default", job_id)
    connection.hset(f"rq:job:{job_id}", mapping={"status": "queued", "pagemill_crashes": "3"})
    connection.rpush(SUSPECTS, job_id)
    make_flow(connection, sqlite_store).run(burst=True)
    assert silence(connection) == (job_id,)
    make_flow(connection, sqlite_store).run(burst=True)
    assert sqlite_store.states([job_id]) == {job_id: JobState.DONE}
    assert connection.zcard("rq:finished:default") == 1
    assert connection.zcard("rq:failed:default") == connection.llen("pagemill:dead:default") == 0
