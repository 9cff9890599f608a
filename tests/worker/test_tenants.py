"""Limits by tenant through the whole flow: a worker runs what they allow, and all of it in the end."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import redis
from rq import Queue

from engine.step_plan import Sampled, SchedulerOutput
from scripts.fault_table.proxy import Proxy, lose_reply_to
from tests.worker.fakes import ScriptedRunner, make_flow, running
from worker.client import submit
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.records import JobState
from worker.sql.store import JobStore


@dataclass
class CountingRunner(ScriptedRunner):
    """Notes the most requests of each tenant that ever shared a step."""

    most: Counter[str] = field(default_factory=Counter)

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        self.most |= Counter(share.request.tenant for share in plan.scheduled)
        return super().run(plan)


def test_two_bursts_run_limited_jobs_to_the_end(queue_connection: redis.Redis, store: JobStore) -> None:
    QueuePolicy(queue_connection).limit("acme", TenantLimit(max_running=2))
    ids = submit(queue_connection, [{"prompt": f"acme {number}", "tenant": "acme"} for number in range(12)])
    ids += submit(queue_connection, [f"other {number}" for number in range(12)])
    runners = [CountingRunner(), CountingRunner()]
    flows = [make_flow(queue_connection, store, runner, name=f"w{n}") for n, runner in enumerate(runners)]
    with running(flows[0], burst=True) as first, running(flows[1], burst=True) as second:
        first.wait()
        second.wait()
    assert set(store.states(ids).values()) == {JobState.DONE}
    assert all(runner.most["acme"] <= 2 for runner in runners)
    assert set((runners[0].generations + runners[1].generations).values()) == {1}
    assert queue_connection.keys("pagemill:parked:*") == []
    assert queue_connection.keys("pagemill:slots") == []


@pytest.mark.parametrize("lost", [(), ("claim",), ("tell",), ("claim", "tell")])
def test_jobs_of_a_producer_with_nothing_but_rq_are_limited(
    connection: redis.Redis, proxy: Proxy, proxied: redis.Redis, sqlite_store: JobStore, lost: tuple[str, ...]
) -> None:
    """Whose a job is, its worker says after the claim; whichever reply is lost, the limit holds and no job is."""
    QueuePolicy(connection).limit("default", TenantLimit(max_running=1))
    queue = Queue("default", connection=connection, serializer="json")
    ids = [queue.enqueue("pagemill.prompt", {"prompt": f"job {number}"}).id for number in range(8)]
    for name in lost:
        lose_reply_to(proxy, connection, name)
    runner = CountingRunner()
    make_flow(proxied, sqlite_store, runner).run(burst=True)
    assert proxy.lose_replies_to == []
    assert set(sqlite_store.states(ids).values()) == {JobState.DONE}
    assert (runner.most["default"], set(runner.generations.values())) == (1, {1})
