"""A thousand spoilt records among good jobs: the worker goes on, the good jobs are done, nothing is left behind.

This is row 13 of the fault table.
"""

import random
import sys
from collections import Counter
from typing import Any

import pytest
import redis

from scripts.fault_table.mutations import MUTATIONS, has_ended_by_its_own_word, real_record, sql_id
from tests.worker.fakes import ScriptedRunner, eventually, make_flow, running
from worker.client import submit
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.records import TERMINAL_STATES, JobState
from worker.sql.store import JobStore

NUM_SPOILT = 1_000
NUM_GOOD = 50


@pytest.mark.parametrize(
    ("queue_connection", "database_url", "limit"),
    [("embedded", "sqlite", None), ("redis", "postgresql", TenantLimit(max_running=8))],
    indirect=["queue_connection", "database_url"],
)
def test_no_record_ends_a_worker(queue_connection: redis.Redis, store: JobStore, limit: TenantLimit | None) -> None:
    chance = random.Random(20261129)
    connection: Any = queue_connection
    (model_id,) = submit(connection, [{"prompt": "a prompt to spoil", "max_tokens": 4, "metadata": {"k": "v"}}])
    record = real_record(connection, model_id)
    if limit is not None:
        QueuePolicy(connection).limit("*", limit)
    good: list[str] = [model_id]
    spoilt: dict[bytes, str] = {}
    runner = ScriptedRunner()
    with running(make_flow(connection, store, runner, beat_seconds=0.2, sweep_seconds=0.2)) as worker:
        for number in range(NUM_SPOILT):
            mutation = MUTATIONS[number % len(MUTATIONS)]
            spoilt[mutation(chance, connection, b"spoilt-%d" % number, record)] = mutation.__name__
            if number % (NUM_SPOILT // NUM_GOOD) == 0:
                good += submit(connection, [f"good {number}"])
            assert worker.thread.is_alive(), f"{mutation.__name__} {number}"
        eventually(lambda: not is_waiting(connection) and not len(worker.flow._held), "all is drained")
        assert worker.thread.is_alive()
        worker.stop()
    assert store.states(good) == dict.fromkeys(good, JobState.DONE)
    assert all(runner.generations[f"good {number}"] == 1 for number in range(0, NUM_SPOILT, NUM_SPOILT // NUM_GOOD))
    states = store.states(map(sql_id, spoilt))
    left = {
        job_id: name
        for job_id, name in spoilt.items()
        if states.get(sql_id(job_id)) not in TERMINAL_STATES and not has_ended_by_its_own_word(connection, job_id)
    }
    assert left == {}
    assert min(Counter(states.values())[state] for state in (JobState.DONE, JobState.DEAD)) > NUM_SPOILT // 10
    assert connection.keys("pagemill:leases:*") == []
    assert "this" not in sys.modules  # what the pickles and the foreign functions would have imported


def is_waiting(connection: Any) -> bool:
    """Tell whether jobs wait in the queue, for their tenants' limits or to run apart from others."""
    return bool(connection.exists("rq:queue:default", "pagemill:parked:default", "pagemill:suspects:default"))
