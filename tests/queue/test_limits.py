"""Limits by tenant: never exceeded, nothing lost, the order kept, slots and parked jobs given back by themselves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from worker.client import submit
from worker.errors import PagemillError
from worker.queue.access import CancelOutcome
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.policy import EVERYONE, QueuePolicy, TenantLimit, TenantStatus
from worker.queue.suspects import Absolution, Suspects
from worker.records import AttemptState, Claim

Enqueue = Callable[..., list[str]]


@pytest.fixture
def policy(queue_connection: redis.Redis) -> QueuePolicy:
    return QueuePolicy(queue_connection)


def submit_for(connection: redis.Redis, tenant: str, count: int, queue: str = "default") -> list[str]:
    return list(submit(connection, [{"prompt": "x", "tenant": tenant}] * count, queue=queue))


def job_ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.job_id for claim in claims]


def texts(reply: Any) -> list[str]:
    return [entry.decode() for entry in reply]


def done(claim: Claim) -> Acknowledgement:
    return Acknowledgement(claim, AttemptState.DONE, {"text": "x"})


def test_no_more_jobs_run_than_the_limit_allows(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=2))
    acme, other = submit_for(queue_connection, "acme", 5), submit_for(queue_connection, "other", 2)
    claims = worker_queue.claim(["default"], 10).claims
    assert job_ids(claims) == [*acme[:2], *other]
    assert other_queue.claim(["default"], 10).claims == ()
    assert policy.tenants() == (
        TenantStatus("acme", TenantLimit(max_running=2), running=2, started=0, parked={"default": 3}),
    )
    worker_queue.acknowledge([done(claims[0])])
    assert job_ids(other_queue.claim(["default"], 10).claims) == [acme[2]]
    worker_queue.requeue([claims[1]])
    assert job_ids(other_queue.claim(["default"], 10).claims) == [acme[1]]
    assert other_queue.claim(["default"], 10).claims == ()


def test_the_limit_of_everyone_is_each_tenants_own(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit(EVERYONE, TenantLimit(max_running=1))
    policy.limit("big", TenantLimit(max_running=3))
    one, two, big = (submit_for(queue_connection, tenant, 4) for tenant in ("one", "two", "big"))
    assert job_ids(worker_queue.claim(["default"], 20).claims) == [one[0], two[0], *big[:3]]


def test_a_slot_lasts_as_long_as_its_lease(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    first, second = submit_for(queue_connection, "acme", 2)
    (claim,) = worker_queue.claim(["default"], 2).claims
    member = f"{first}:{claim.execution_id}"
    keys = ("pagemill:leases:default", "pagemill:running:acme")
    assert queue_connection.zscore(keys[0], member) == queue_connection.zscore(keys[1], member)
    for key in keys:
        queue_connection.zadd(key, {member: 1.0}, xx=True)
    assert job_ids(other_queue.claim(["default"], 2).claims) == [second]  # its worker is dead, for all anybody knows
    assert other_queue.sweep(["default"]) == (first,)
    assert not queue_connection.hexists("pagemill:slots", member)
    assert other_queue.claim(["default"], 2).claims == ()


def test_renewed_leases_keep_their_slots(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    submit_for(queue_connection, "acme", 2)
    claims = worker_queue.claim(["default"], 2).claims
    queue_connection.zadd("pagemill:running:acme", {f"{claims[0].job_id}:{claims[0].execution_id}": 1.0})
    assert worker_queue.extend(claims) == frozenset()
    assert worker_queue.claim(["default"], 2).claims == ()


def test_no_more_jobs_start_in_a_minute_than_the_limit_allows(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(per_minute=3))
    ids = submit_for(queue_connection, "acme", 8)
    claims = worker_queue.claim(["default"], 10).claims
    assert job_ids(claims) == ids[:3]
    worker_queue.acknowledge(map(done, claims))
    assert worker_queue.claim(["default"], 10).claims == ()
    assert (policy.tenants()[0].started, policy.tenants()[0].parked) == (3, {"default": 5})
    assert 0 < queue_connection.pttl("pagemill:starts:acme") <= 60_000
    seconds, _ = queue_connection.time()
    queue_connection.lset("pagemill:starts:acme", 0, f"{seconds - 61}000000")
    assert job_ids(worker_queue.claim(["default"], 10).claims) == [ids[3]]
    assert worker_queue.claim(["default"], 10).claims == ()


def test_jobs_that_do_not_name_their_tenant_are_limited_too(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, policy: QueuePolicy, enqueue: Enqueue
) -> None:
    """A producer with nothing but RQ: the worker finds the tenant in the payload."""
    policy.limit("default", TenantLimit(max_running=2))
    ids = enqueue(6)
    claimed = worker_queue.claim(["default"], 4)
    assert (job_ids(claimed.claims), claimed.num_parked) == (ids[:2], 2)
    assert (worker_queue.claim(["default"], 10).claims, policy.tenants()[0].parked) == ((), {"default": 4})
    assert queue_connection.hget(f"rq:job:{ids[2]}", "status") == b"queued"
    assert queue_connection.zcard("rq:wip:default") == 2
    worker_queue.acknowledge([done(claimed.claims[0])])
    assert job_ids(other_queue.claim(["default"], 4).claims) == [ids[2]]


@pytest.mark.parametrize("spoilt", [b"", b"a b", b"\xff\x00", b"x" * 1000])
def test_what_cannot_be_a_tenant_is_not_taken_for_one(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy, spoilt: bytes
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    ids = submit_for(queue_connection, "acme", 3)
    for job_id in ids:
        queue_connection.hset(f"rq:job:{job_id}", "pagemill_tenant", spoilt)
    claimed = worker_queue.claim(["default"], 5)
    assert (job_ids(claimed.claims), claimed.num_parked) == (ids[:1], 2)
    assert queue_connection.hmget(f"rq:job:{ids[2]}", "pagemill_tenant") == [b"acme"]
    assert policy.parked(["default", "other"]) == {"default": 2, "other": 0}


def test_what_runs_when_a_limit_is_set_counts_against_it(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    ids = submit_for(queue_connection, "acme", 5)
    claims = worker_queue.claim(["default"], 3).claims
    policy.limit("acme", TenantLimit(max_running=2))
    assert (policy.tenants()[0].running, worker_queue.claim(["default"], 5).claims) == (3, ())
    worker_queue.acknowledge(map(done, claims[:2]))
    assert job_ids(worker_queue.claim(["default"], 5).claims) == [ids[3]]


def test_without_its_limit_a_tenants_parked_jobs_go_on(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    ids = submit_for(queue_connection, "acme", 5)
    claims = worker_queue.claim(["default"], 5).claims
    assert policy.clear("acme")
    assert not policy.clear("acme")
    claims += worker_queue.claim(["default"], 5).claims
    assert job_ids(claims) == ids
    worker_queue.acknowledge(map(done, claims))
    assert queue_connection.keys("pagemill:*") == []


def test_parked_jobs_can_be_cancelled(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    ids = submit_for(queue_connection, "acme", 3)
    worker_queue.claim(["default"], 5)
    for job_id in ids[1:]:
        assert worker_queue.cancel(job_id).outcome is CancelOutcome.CANCELLED_WAITING
        assert queue_connection.hget(f"rq:job:{job_id}", "status") == b"canceled"
    assert queue_connection.keys("pagemill:parked:*") == []


def test_tenants_with_parked_jobs_take_turns(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit(EVERYONE, TenantLimit(max_running=1))
    for tenant in "abc":
        submit_for(queue_connection, tenant, 3)
    held = {claim.job.tenant: claim for claim in worker_queue.claim(["default"], 20).claims}
    order = []
    for _ in range(6):
        worker_queue.acknowledge(map(done, held.values()))
        held = {claim.job.tenant: claim for claim in worker_queue.claim(["default"], 1).claims}
        order += list(held)
    assert order == [*"abc", *"abc"]


def test_no_other_queue_or_tenant_waits_for_a_limited_one(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit("acme", TenantLimit(max_running=1))
    (first, *_) = submit_for(queue_connection, "acme", 2500, queue="high")
    other, low = submit_for(queue_connection, "other", 1, queue="high"), submit_for(queue_connection, "acme", 1, "low")
    claimed: list[str] = []
    for _ in range(5):
        claimed += job_ids(worker_queue.claim(["high", "low"], 4).claims)
    assert claimed == [first, *other]
    assert sum(policy.tenants()[0].parked.values()) == 2500
    assert low[0] not in claimed


def test_hundreds_of_tenants_at_their_limits_hide_nobody(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy
) -> None:
    policy.limit(EVERYONE, TenantLimit(max_running=1))
    for number in range(150):
        submit_for(queue_connection, f"tenant-{number:03}", 2)
    held = {claim.job.tenant: claim for claim in worker_queue.claim(["default"], 400).claims}
    assert len(held) == 150
    worker_queue.acknowledge([done(held["tenant-149"])])
    claims = [claim for _ in range(4) for claim in worker_queue.claim(["default"], 5).claims]
    assert [claim.job.tenant for claim in claims] == ["tenant-149"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"max_running": "many"}', '{"max_running": 0}'])
def test_a_limit_that_cannot_be_read_stops_nobody(
    queue_connection: redis.Redis, worker_queue: JobQueue, policy: QueuePolicy, text: str
) -> None:
    queue_connection.hset("pagemill:limits", "acme", text)
    ids = submit_for(queue_connection, "acme", 3)
    assert job_ids(worker_queue.claim(["default"], 5).claims) == ids
    assert policy.tenants()[0].limit is None


@pytest.mark.parametrize("fields", [{}, {"max_running": 0}, {"per_minute": -1}, {"max_running": 10**9}])
def test_limits_have_bounds(fields: dict[str, int]) -> None:
    with pytest.raises(PagemillError, match=r"max_running|per_minute"):
        TenantLimit(**fields)


def test_a_limit_is_for_a_name_that_a_tenant_can_have(policy: QueuePolicy) -> None:
    with pytest.raises(PagemillError, match=r"^tenant: "):
        policy.limit("a b", TenantLimit(max_running=1))


QUEUES = ("high", "low")
WORKERS = ("worker-1", "worker-2")
TENANTS = ("loud", "calm", "quiet")  # the last one's producer has nothing but RQ


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
