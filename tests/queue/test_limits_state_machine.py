"""Limits by tenant against a model: whatever happens in whatever order, they hold, and no job is lost."""

from dataclasses import dataclass, field
from typing import Any

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.queue.tenants import done, submit_for
from worker.queue.access import CancelOutcome
from worker.queue.job_queue import JobQueue
from worker.queue.policy import QueuePolicy, TenantLimit
from worker.queue.suspects import Absolution, Suspects
from worker.records import Claim

QUEUES = ("high", "low")
WORKERS = ("worker-1", "worker-2")
TENANTS = ("loud", "calm", "quiet")  # the last one's producer has nothing but RQ


def texts(reply: Any) -> list[str]:
    return [entry.decode() for entry in reply]


@dataclass
class Model:
    """Where every job should be, and what each tenant may have."""

    limits: dict[str, TenantLimit] = field(default_factory=dict)
    waiting: dict[tuple[str, str], list[str]] = field(
        default_factory=lambda: {(queue, tenant): [] for queue in QUEUES for tenant in TENANTS}
    )
    held: list[tuple[str, Claim]] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TENANTS, 0))
    expired: set[str] = field(default_factory=set)  # execution ids whose lease ran out, unswept
    num_ended: int = 0
    num_submitted: int = 0

    def running(self, tenant: str) -> int:
        return sum(c.job.tenant == tenant and c.execution_id not in self.expired for _, c in self.held)

    def has_room(self, tenant: str) -> bool:
        limit = self.limits.get(tenant)
        return limit is None or (
            (limit.max_running is None or self.running(tenant) < limit.max_running)
            and (limit.per_minute is None or self.started[tenant] < limit.per_minute)
        )

    def give_back(self, claims: list[Claim]) -> None:
        for claim in sorted(claims, key=lambda claim: (claim.epoch, claim.execution_id), reverse=True):
            self.waiting[claim.queue, claim.job.tenant].insert(0, claim.job_id)
        self.held = [(worker, claim) for worker, claim in self.held if claim not in claims]


class LimitsMachine(RuleBasedStateMachine):
    """Two workers, two queues, three tenants whose limits come and go."""

    connection: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.queues = {name: JobQueue(self.connection, name, 600.0) for name in WORKERS}
        self.policy = QueuePolicy(self.connection)
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        self.connection.flushdb()
        self.limit("loud", 1, 4)
        self.limit("calm", None, 2)
        self.limit("quiet", 2, None)
        self.submit("high", "loud", 3)
        self.submit("low", "quiet", 3)

    @rule(queue=st.sampled_from(QUEUES), tenant=st.sampled_from(TENANTS), count=st.integers(1, 4))
    def submit(self, queue: str, tenant: str, count: int) -> None:
        ids = submit_for(self.connection, tenant, count, queue)
        if tenant == "quiet":
            for job_id in ids:
                self.connection.hdel(f"rq:job:{job_id}", "pagemill_tenant")
        self.model.waiting[queue, tenant] += ids
        self.model.num_submitted += count

    @rule(
        tenant=st.sampled_from(TENANTS),
        max_running=st.none() | st.integers(1, 2),
        per_minute=st.none() | st.integers(1, 4),
    )
    def limit(self, tenant: str, max_running: int | None, per_minute: int | None) -> None:
        if max_running is None and per_minute is None:
            self.policy.clear(tenant)
            self.model.limits.pop(tenant, None)
        else:
            self.model.limits[tenant] = TenantLimit(max_running=max_running, per_minute=per_minute)
            self.policy.limit(tenant, self.model.limits[tenant])
        # Starts count from when there is a limit of them.
        self.connection.delete(f"pagemill:starts:{tenant}")
        self.model.started[tenant] = 0

    @rule()
    def let_a_minute_pass(self) -> None:
        for tenant in TENANTS:
            self.connection.delete(f"pagemill:starts:{tenant}")
            self.model.started[tenant] = 0

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 6))
    def claim(self, worker: str, limit: int) -> None:
        claimed = self.queues[worker].claim(QUEUES, limit)
        for claim in claimed.claims:
            tenant = claim.job.tenant
            waiting = self.model.waiting[claim.queue, tenant]
            assert self.model.has_room(tenant)
            if tenant != "quiet":
                assert waiting[0] == claim.job_id
            waiting.remove(claim.job_id)
            self.model.held.append((worker, claim))
            self.model.started[tenant] += 1
        if len(claimed.claims) < limit and not claimed.num_parked:
            idle = {tenant for (_, tenant), ids in self.model.waiting.items() if ids and self.model.has_room(tenant)}
            assert idle == set(), "whoever may start, starts"

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        ended = [(worker, claim) for worker, claim in self.model.held if data.draw(st.booleans())]
        for worker, claim in ended:
            assert self.queues[worker].acknowledge([done(claim)]) == frozenset()
            self.model.held.remove((worker, claim))
        self.model.num_ended += len(ended)

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def requeue(self, worker: str, data: st.DataObject) -> None:
        given = [claim for holder, claim in self.model.held if holder == worker and data.draw(st.booleans())]
        assert self.queues[worker].requeue(given) == frozenset()
        self.model.give_back(given)

    @rule(data=st.data())
    def let_leases_run_out(self, data: st.DataObject) -> None:
        for _, claim in self.model.held:
            if data.draw(st.booleans()):
                member = {f"{claim.job_id}:{claim.execution_id}": 1.0}
                self.connection.zadd(f"pagemill:leases:{claim.queue}", member, xx=True)
                self.connection.zadd(f"pagemill:running:{claim.job.tenant}", member, xx=True)
                self.model.expired.add(claim.execution_id)

    @rule(worker=st.sampled_from(WORKERS))
    def sweep(self, worker: str) -> None:
        orphans = [claim for _, claim in self.model.held if claim.execution_id in self.model.expired]
        assert sorted(self.queues[worker].sweep(QUEUES)) == sorted(claim.job_id for claim in orphans)
        # Their workers turn out to live: nobody is suspected of a crash, and all wait again.
        orphans.sort(key=lambda claim: (claim.epoch, claim.execution_id), reverse=True)
        assert set(Suspects(self.connection, worker, 600.0).absolve(orphans)) <= {Absolution.ABSOLVED}
        self.model.give_back(orphans)

    @rule(worker=st.sampled_from(WORKERS))
    def recover(self, worker: str) -> None:
        held = sorted(claim.execution_id for holder, claim in self.model.held if holder == worker)
        assert sorted(claim.execution_id for claim in self.queues[worker].recover([]).claims) == held

    @rule(data=st.data(), place=st.sampled_from([(queue, tenant) for queue in QUEUES for tenant in TENANTS]))
    def cancel(self, data: st.DataObject, place: tuple[str, str]) -> None:
        if self.model.waiting[place]:
            job_id = data.draw(st.sampled_from(self.model.waiting[place]))
            assert self.queues["worker-1"].cancel(job_id).outcome is CancelOutcome.CANCELLED_WAITING
            self.model.waiting[place].remove(job_id)
            self.model.num_ended += 1

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        lists = [*self.connection.keys("rq:queue:*"), *self.connection.keys("pagemill:parked:*:*")]
        found = sorted(job_id for name in lists for job_id in texts(self.connection.lrange(name, 0, -1)))
        assert found == sorted(job_id for ids in self.model.waiting.values() for job_id in ids)
        assert len(found) + len(self.model.held) + self.model.num_ended == self.model.num_submitted

    @invariant()
    def parked_lists_are_known(self) -> None:
        for queue in QUEUES:
            tenants = set(texts(self.connection.zrange(f"pagemill:parked:{queue}", 0, -1)))
            lists = texts(self.connection.keys(f"pagemill:parked:{queue}:*"))
            assert tenants == {name.rpartition(":")[2] for name in lists}

    @invariant()
    def slots_belong_to_held_jobs(self) -> None:
        slots = set(texts(self.connection.hkeys("pagemill:slots")))
        assert slots <= {f"{claim.job_id}:{claim.execution_id}" for _, claim in self.model.held}


def test_limits_hold_and_nothing_is_lost(queue_connection: redis.Redis) -> None:
    class Machine(LimitsMachine):
        connection = queue_connection

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
