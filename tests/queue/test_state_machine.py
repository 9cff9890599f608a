"""The queue's protocol against a model: whatever happens in whatever order, every job is in exactly one place."""

from dataclasses import dataclass, field

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from worker.client import submit
from worker.queue import Acknowledgement, JobQueue
from worker.queue_access import CancelOutcome
from worker.records import AttemptState, Claim

QUEUES = ("high", "low")
WORKERS = ("worker-1", "worker-2")
REGISTRIES = {AttemptState.DONE: "finished", AttemptState.FAILED: "failed", AttemptState.CANCELLED: "canceled"}


@dataclass
class Model:
    """Where every job should be."""

    waiting: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    held: dict[str, list[Claim]] = field(default_factory=lambda: {name: [] for name in WORKERS})
    expired: set[str] = field(default_factory=set)  # execution ids whose lease ran out, unswept
    stale: list[tuple[str, Claim]] = field(default_factory=list)  # worker, claim whose lease is gone
    ended: dict[str, str] = field(default_factory=dict)  # job id -> registry
    queue_of: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)

    def give_back(self, claims: list[Claim]) -> None:
        for claim in sorted(claims, key=lambda claim: (claim.epoch, claim.execution_id), reverse=True):
            self.waiting[claim.queue].insert(0, claim.job_id)

    def let_go(self, worker: str, claims: list[Claim]) -> None:
        for claim in claims:
            self.held[worker].remove(claim)
            self.stale.append((worker, claim))
            self.expired.discard(claim.execution_id)


class QueueMachine(RuleBasedStateMachine):
    """Two workers and two queues."""

    connection: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.queues = {name: JobQueue(self.connection, name, 600.0, lower_queue_share=0.0) for name in WORKERS}
        self.model = Model()

    @initialize()
    def empty(self) -> None:
        self.connection.flushdb()

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 4))
    def submit(self, queue: str, count: int) -> None:
        ids = submit(self.connection, ["x"] * count, queue=queue)
        self.model.waiting[queue] += ids
        self.model.queue_of |= dict.fromkeys(ids, queue)

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 4))
    def claim(self, worker: str, limit: int) -> None:
        claims = self.queues[worker].claim(QUEUES, limit).claims
        expected = [job_id for queue in QUEUES for job_id in self.model.waiting[queue]][:limit]
        assert [claim.job_id for claim in claims] == expected
        for claim in claims:
            assert claim.epoch > self.model.epochs.get(claim.job_id, 0)
            self.model.epochs[claim.job_id] = claim.epoch
            self.model.waiting[claim.queue].remove(claim.job_id)
        self.model.held[worker] += claims

    @rule(worker=st.sampled_from(WORKERS))
    def recover(self, worker: str) -> None:
        recovered = self.queues[worker].recover([]).claims
        assert sorted(claim.execution_id for claim in recovered) == sorted(
            claim.execution_id for claim in self.model.held[worker]
        )

    @rule(worker=st.sampled_from(WORKERS))
    def extend(self, worker: str) -> None:
        assert self.queues[worker].extend(self.model.held[worker]) == frozenset()
        self.model.expired -= {claim.execution_id for claim in self.model.held[worker]}

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def expire(self, worker: str, data: st.DataObject) -> None:
        for claim in self.model.held[worker]:
            if data.draw(st.booleans()):
                member = f"{claim.job_id}:{claim.execution_id}"
                self.connection.zadd(f"pagemill:leases:{claim.queue}", {member: 1.0}, xx=True)
                self.model.expired.add(claim.execution_id)

    @rule(worker=st.sampled_from(WORKERS))
    def sweep(self, worker: str) -> None:
        swept = self.queues[worker].sweep(QUEUES)
        orphans: list[Claim] = []
        for holder, claims in self.model.held.items():
            gone = [claim for claim in claims if claim.execution_id in self.model.expired]
            orphans += gone
            self.model.let_go(holder, gone)
        assert sorted(swept) == sorted(claim.job_id for claim in orphans)
        self.model.give_back(orphans)

    @rule(worker=st.sampled_from(WORKERS), data=st.data(), state=st.sampled_from(list(REGISTRIES)))
    def acknowledge(self, worker: str, data: st.DataObject, state: AttemptState) -> None:
        ended = [claim for claim in self.model.held[worker] if data.draw(st.booleans())]
        ends = [Acknowledgement(claim, state, {"text": "x"}, "reason") for claim in ended]
        for _ in range(data.draw(st.integers(1, 2))):  # the second is a repetition after a lost reply
            assert self.queues[worker].acknowledge(ends) == frozenset()
        for claim in ended:
            self.model.held[worker].remove(claim)
            self.model.expired.discard(claim.execution_id)
            self.model.ended[claim.job_id] = REGISTRIES[state]

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def requeue(self, worker: str, data: st.DataObject) -> None:
        given = [claim for claim in self.model.held[worker] if data.draw(st.booleans())]
        assert self.queues[worker].requeue(data.draw(st.permutations(given))) == frozenset()
        self.model.let_go(worker, given)
        self.model.give_back(given)

    @precondition(lambda self: self.model.stale)
    @rule(data=st.data(), verb=st.sampled_from(["extend", "requeue", "acknowledge"]))
    def use_a_stale_claim(self, data: st.DataObject, verb: str) -> None:
        worker, claim = data.draw(st.sampled_from(self.model.stale))
        queue = self.queues[worker]
        if verb == "acknowledge":
            gone = queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {"text": "stale"})])
        else:
            gone = queue.extend([claim]) if verb == "extend" else queue.requeue([claim])
        assert gone == {claim.execution_id}

    @precondition(lambda self: self.model.queue_of)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.model.queue_of)))
        outcome = self.queues["worker-1"].cancel(job_id).outcome
        waiting = self.model.waiting[self.model.queue_of[job_id]]
        if job_id in waiting:
            assert outcome is CancelOutcome.CANCELLED_WAITING
            waiting.remove(job_id)
            self.model.ended[job_id] = "canceled"
        elif job_id in self.model.ended:
            assert outcome is CancelOutcome.NOT_CANCELLABLE
        else:
            assert outcome is CancelOutcome.CANCELLING
            assert job_id in self.queues["worker-1"].cancelling()

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        connection = self.connection
        held = {
            name: sorted(f"{c.job_id}:{c.execution_id}" for c in claims) for name, claims in self.model.held.items()
        }
        for name in QUEUES:
            assert self._list(connection.lrange(f"rq:queue:{name}", 0, -1)) == self.model.waiting[name]
            leases = self._list(connection.zrange(f"pagemill:leases:{name}", 0, -1))
            assert sorted(leases) == sorted(self._list(connection.zrange(f"rq:wip:{name}", 0, -1)))
            assert sorted(leases) == sorted(
                f"{c.job_id}:{c.execution_id}" for claims in self.model.held.values() for c in claims if c.queue == name
            )
        for name in WORKERS:
            assert sorted(self._list(connection.smembers(f"rq:worker:{name}:executions"))) == held[name]
        for registry in REGISTRIES.values():
            found = {
                job_id for name in QUEUES for job_id in self._list(connection.zrange(f"rq:{registry}:{name}", 0, -1))
            }
            assert found == {job_id for job_id, place in self.model.ended.items() if place == registry}
        assert len(connection.keys("rq:execution:*")) == sum(map(len, held.values()))

    def _list(self, reply: object) -> list[str]:
        assert isinstance(reply, list | set)
        return [entry.decode() for entry in reply]


def test_every_job_is_in_exactly_one_place(queue_connection: redis.Redis) -> None:
    class Machine(QueueMachine):
        connection = queue_connection

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
