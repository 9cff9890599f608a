"""Limits by tenant: never exceeded, the order kept, slots and parked jobs given back by themselves."""

from collections.abc import Callable

import pytest
import redis

from tests.queue.tenants import done, submit_for
from worker.errors import PagemillError
from worker.queue.access import CancelOutcome
from worker.queue.job_queue import JobQueue
from worker.queue.policy import EVERYONE, QueuePolicy, TenantLimit, TenantStatus
from worker.records import Claim

Enqueue = Callable[..., list[str]]


@pytest.fixture
def policy(queue_connection: redis.Redis) -> QueuePolicy:
    return QueuePolicy(queue_connection)


def job_ids(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.job_id for claim in claims]


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
