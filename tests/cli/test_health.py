"""doctor and status on workers: whether the engine answers, not only the process; and what people have stopped."""

import json
from datetime import timedelta

import pytest
import redis
from rq.suspension import suspend

from tests.cli.conftest import CannedWorker, Run
from tests.sql.builders import worker_of
from worker.client import submit
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.sql.fleet import WorkerCounters
from worker.sql.store import JobStore
from worker.sql.tables import utc_now


def checks(run: Run) -> dict[str, tuple[str, str]]:
    result = run("doctor", "--json")
    assert result.exit_code == 0
    return {row["check"]: (row["verdict"], row["detail"]) for row in json.loads(result.stdout)}


def test_a_machine_without_workers_is_sound(run: Run) -> None:
    assert checks(run)["workers"] == ("ok", "none is running")
    assert checks(run)["claims"] == ("ok", "nothing is paused")


@pytest.mark.parametrize(
    ("engine_age_seconds", "verdict", "state"), [(1, "ok", "running"), (59, "ok", "running"), (61, "warn", "stuck")]
)
def test_a_worker_is_as_well_as_its_engine(
    run: Run, store: JobStore, engine_age_seconds: float, verdict: str, state: str
) -> None:
    store.register_worker(worker_of("w1", started_at=utc_now() - timedelta(hours=1)))
    store.heartbeat_worker("w1", WorkerCounters(), timedelta(seconds=engine_age_seconds))
    found, detail = checks(run)["workers"]
    assert found == verdict
    assert detail.startswith(f"w1 is {state}, its engine answered ")
    (worker,) = json.loads(run("status", "--json").stdout)["workers"]
    assert worker["state"] == state
    assert worker["engine_answered_at"] < worker["last_heartbeat_at"]


def test_a_worker_that_has_just_started_and_a_silent_one(run: Run, store: JobStore) -> None:
    store.register_worker(worker_of("w1", started_at=utc_now() - timedelta(minutes=5)))
    store.register_worker(worker_of("w2", started_at=utc_now()))
    store.register_worker(worker_of("w3", started_at=utc_now()))
    store.stop_worker("w3")
    verdict, detail = checks(run)["workers"]
    assert verdict == "warn"
    young, silent = detail.split("; ")
    assert young == "w2 is running, its engine has not answered yet"
    assert silent.startswith("w1 has been silent for 30")


def test_what_was_stopped_and_forgotten_is_named(
    run: Run, empty_queue: redis.Redis, canned_worker: CannedWorker
) -> None:
    policy = QueuePolicy(empty_queue)
    policy.limit("acme", TenantLimit(max_running=1))
    submit(empty_queue, [{"prompt": "x", "tenant": "acme"}] * 3)
    canned_worker.claim()
    assert checks(run)["claims"] == ("ok", "2 jobs of default wait for tenants' limits")
    policy.pause(["bulk"])
    suspend(empty_queue)
    verdict, detail = checks(run)["claims"]
    assert verdict == "warn"
    assert detail.startswith(
        "all queues are suspended (rq resume ends that); bulk is paused (pagemill resume bulk); 2 "
    )


def test_services_that_are_down_are_named_once(run: Run) -> None:
    result = run("doctor", "--json", "--redis-url", "redis://127.0.0.1:1/0", "--database-url", "sqlite:////none/x.db")
    verdicts = {row["check"]: row["verdict"] for row in json.loads(result.stdout)}
    assert result.exit_code in (69, 78)
    assert (verdicts["queue"], verdicts["claims"], verdicts["workers"]) == ("fail", "warn", "warn")
