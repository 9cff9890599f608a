"""The queue's protocol against a model: whatever happens in whatever order, every job is in exactly one place."""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

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

from tests.queue.suspicion import claim_suspects, suspect_groups
from worker.client import submit
from worker.queue.access import CancelOutcome
from worker.queue.claim_replies import Claimed
from worker.queue.crashes import CrashKind
from worker.queue.job_queue import Acknowledgement, Delay, DelayedClaims, JobQueue
from worker.queue.policy import QueuePolicy
from worker.queue.suspects import Absolution, DeadWorker, Released, Suspects
from worker.records import AttemptState, Claim, Retry

QUEUES = ("high", "low")
WORKERS = ("worker-1", "worker-2")
REGISTRIES = {AttemptState.DONE: "finished", AttemptState.FAILED: "failed", AttemptState.CANCELLED: "canceled"}


@dataclass
class Model:
    """Where every job should be."""

    waiting: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    suspects: dict[str, list[list[str]]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    crashes: dict[str, int] = field(default_factory=dict)  # of suspects, by job id
    held: dict[str, list[Claim]] = field(default_factory=lambda: {name: [] for name in WORKERS})
    expired: set[str] = field(default_factory=set)  # execution ids whose lease ran out, unswept
    stale: list[tuple[str, Claim]] = field(default_factory=list)  # worker, claim whose lease is gone
    delayed: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in QUEUES})
    last_delayed: dict[str, str] = field(default_factory=dict)  # job id -> execution id
    cancelling: set[str] = field(default_factory=set)  # job ids that a worker was asked to cancel
    ended: dict[str, str] = field(default_factory=dict)  # job id -> registry
    queue_of: dict[str, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def give_back(self, claims: list[Claim]) -> None:
        for claim in sorted(claims, key=lambda claim: (claim.epoch, claim.execution_id), reverse=True):
            self.put_at_head(claim.queue, claim.job_id)

    def put_at_head(self, queue: str, job_id: str) -> None:
        if job_id in self.crashes:
            self.suspects[queue].insert(0, [job_id])
        else:
            self.waiting[queue].insert(0, job_id)

    def suspect(self, claims: list[Claim]) -> None:
        """Make suspects of one worker's jobs."""
        claims = sorted(claims, key=lambda claim: (claim.epoch, claim.execution_id))
        most = 3 if len(claims) == 1 else 2
        for claim in claims:
            self.crashes[claim.job_id] = min(self.crashes.get(claim.job_id, 0) + 1, most)
        for queue, groups in self.suspects.items():
            mine = [claim.job_id for claim in claims if claim.queue == queue]
            first_time = [job_id for job_id in mine if self.crashes[job_id] == 1]
            groups[:0] = [[job_id] for job_id in mine if self.crashes[job_id] > 1]
            num_groups = round(math.sqrt(len(first_time)))
            bounds = [number * len(first_time) // num_groups for number in range(num_groups + 1)] if first_time else []
            groups += [first_time[first:last] for first, last in pairwise(bounds)]

    def absolve(self, claim: Claim) -> None:
        """Take back the one crash of a job."""
        del self.crashes[claim.job_id]
        for group in self.suspects[claim.queue]:
            if claim.job_id in group:
                group.remove(claim.job_id)
                self.waiting[claim.queue].insert(0, claim.job_id)
        self.suspects[claim.queue] = [group for group in self.suspects[claim.queue] if group]

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
        self.suspects = Suspects(self.connection, "sweeper", lease_seconds=600.0)
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
        open_queues = [queue for queue in QUEUES if queue not in self.model.paused]
        expected = [job_id for queue in open_queues for job_id in self.model.waiting[queue]][:limit]
        assert [claim.job_id for claim in claims] == expected
        for claim in claims:
            assert claim.epoch > self.model.epochs.get(claim.job_id, 0)
            self.model.epochs[claim.job_id] = claim.epoch
            self.model.waiting[claim.queue].remove(claim.job_id)
        self.model.held[worker] += claims

    @rule(worker=st.sampled_from(WORKERS), queue=st.sampled_from(QUEUES))
    def claim_suspects(self, worker: str, queue: str) -> None:
        if queue in self.model.paused:
            assert claim_suspects(self.connection, self.queues[worker], queue) == Claimed((), ())
            return
        waiting = self.model.suspects[queue]
        while waiting and set(waiting[0]) <= self.model.ended.keys():
            waiting.pop(0)
        expected = [job_id for job_id in waiting.pop(0) if job_id not in self.model.ended] if waiting else []
        claimed = claim_suspects(self.connection, self.queues[worker], queue)
        guilty = [job_id for job_id in expected if self.model.crashes[job_id] == 3]
        assert [record.job_id for record in claimed.dead] == guilty
        assert [claim.job_id for claim in claimed.claims] == [job_id for job_id in expected if job_id not in guilty]
        assert self.queues[worker].dead_letter(claimed.dead) == len(guilty)
        self.model.ended |= dict.fromkeys(guilty, "failed")
        for claim in claimed.claims:
            self.model.epochs[claim.job_id] = claim.epoch
        self.model.held[worker] += claimed.claims

    @rule(queue=st.sampled_from(QUEUES))
    def pause_or_resume(self, queue: str) -> None:
        policy = QueuePolicy(self.connection)
        if queue in self.model.paused:
            policy.resume([queue])
            self.model.paused.remove(queue)
        else:
            policy.pause([queue])
            self.model.paused.add(queue)
        assert policy.paused() == self.model.paused

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
        orphans: list[list[Claim]] = []
        for holder, claims in self.model.held.items():
            orphans.append([claim for claim in claims if claim.execution_id in self.model.expired])
            self.model.let_go(holder, orphans[-1])
        assert sorted(swept) == sorted(claim.job_id for claims in orphans for claim in claims)
        for claims in sorted(orphans, key=lambda claims: min(((c.epoch, c.execution_id) for c in claims), default=())):
            self.model.suspect(claims)

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def die(self, worker: str, data: st.DataObject) -> None:
        held = list(self.model.held[worker])
        at_work = [claim for claim in held if data.draw(st.booleans())]
        dead = DeadWorker(worker, CrashKind.DEATH, 9, frozenset(claim.execution_id for claim in at_work))
        released = self.suspects.abandon(dead)
        assert set(released.suspects) == {claim.job_id for claim in at_work}
        assert self.suspects.abandon(dead) == Released((), ())  # after a lost reply
        self.model.let_go(worker, held)
        self.model.give_back([claim for claim in held if claim not in at_work])
        self.model.suspect(at_work)

    @precondition(lambda self: self.model.stale)
    @rule(data=st.data())
    def absolve(self, data: st.DataObject) -> None:
        """Only where the claim's silence is the job's one crash: then the model is simple."""
        _, claim = data.draw(st.sampled_from(self.model.stale))
        log: Any = self.connection.hget(f"rq:job:{claim.job_id}", "pagemill_crash_log")
        is_the_cause = log is not None and claim.execution_id in log.decode()
        if self.model.crashes.get(claim.job_id) == 1 and claim.job_id not in self.model.ended:
            assert self.suspects.absolve([claim]) == (Absolution(is_the_cause),)
            if is_the_cause:
                self.model.absolve(claim)
        elif not is_the_cause:
            assert self.suspects.absolve([claim]) == (Absolution.NONE,)

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
            self.model.cancelling.discard(claim.job_id)

    @rule(worker=st.sampled_from(WORKERS), data=st.data(), seconds=st.sampled_from([-1, 3600]))
    def delay(self, worker: str, data: st.DataObject, seconds: int) -> None:
        put_off = [claim for claim in self.model.held[worker] if data.draw(st.booleans())]
        due_at = datetime.now(UTC) + timedelta(seconds=seconds)
        delays = [Delay(claim, Retry(due_at, data.draw(st.integers(0, 3)))) for claim in put_off]
        for _ in range(data.draw(st.integers(1, 2))):
            cancelled = {claim.job_id for claim in put_off} & self.model.cancelling
            assert self.queues[worker].delay(delays) == DelayedClaims(frozenset(), frozenset(cancelled))
        self.model.let_go(worker, put_off)
        for claim in put_off:
            self.model.last_delayed[claim.job_id] = claim.execution_id
            if claim.job_id in self.model.cancelling:
                self.model.cancelling.remove(claim.job_id)
                self.model.ended[claim.job_id] = "canceled"
            elif seconds < 0:
                self.model.put_at_head(claim.queue, claim.job_id)
            else:
                self.model.delayed[claim.queue].append(claim.job_id)

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def enqueue_due(self, worker: str, data: st.DataObject) -> None:
        due: list[str] = []
        for queue, delayed in self.model.delayed.items():
            for job_id in data.draw(st.lists(st.sampled_from(delayed), unique=True)) if delayed else []:
                self.connection.zadd(f"rq:scheduled:{queue}", {job_id: float(len(due))}, xx=True)
                due.append(job_id)
                delayed.remove(job_id)
                self.model.put_at_head(queue, job_id)
        moved = self.queues[worker].enqueue_due(QUEUES)
        assert moved.moved == tuple(due)
        assert (moved.next_in_seconds is not None) == any(self.model.delayed.values())

    @rule(worker=st.sampled_from(WORKERS), data=st.data())
    def requeue(self, worker: str, data: st.DataObject) -> None:
        given = [claim for claim in self.model.held[worker] if data.draw(st.booleans())]
        assert self.queues[worker].requeue(data.draw(st.permutations(given))) == frozenset()
        self.model.let_go(worker, given)
        self.model.give_back(given)

    @precondition(lambda self: self.model.stale)
    @rule(data=st.data(), verb=st.sampled_from(["extend", "requeue", "acknowledge", "delay"]))
    def use_a_stale_claim(self, data: st.DataObject, verb: str) -> None:
        worker, claim = data.draw(st.sampled_from(self.model.stale))
        queue = self.queues[worker]
        if verb == "delay":
            gone = queue.delay([Delay(claim, Retry(datetime.now(UTC), 1))]).gone
            if self.model.last_delayed.get(claim.job_id) == claim.execution_id:
                assert gone == frozenset()  # a repetition of the call that put the job off
                return
        elif verb == "acknowledge":
            gone = queue.acknowledge([Acknowledgement(claim, AttemptState.DONE, {"text": "stale"})])
        else:
            gone = queue.extend([claim]) if verb == "extend" else queue.requeue([claim])
        assert gone == {claim.execution_id}

    @precondition(lambda self: self.model.queue_of)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(list(self.model.queue_of)))
        outcome = self.queues["worker-1"].cancel(job_id).outcome
        queue = self.model.queue_of[job_id]
        for place in (self.model.waiting[queue], self.model.delayed[queue]):
            if job_id in place:
                assert outcome is CancelOutcome.CANCELLED_WAITING
                place.remove(job_id)
                self.model.ended[job_id] = "canceled"
                self.model.cancelling.discard(job_id)
                return
        if any(job_id in group for groups in self.model.suspects.values() for group in groups if group) and (
            job_id not in self.model.ended
        ):
            assert outcome is CancelOutcome.CANCELLED_WAITING  # it stays in its group, which passes it over
            self.model.ended[job_id] = "canceled"
            self.model.cancelling.discard(job_id)
        elif job_id in self.model.ended:
            assert outcome is CancelOutcome.NOT_CANCELLABLE
        else:
            assert outcome is CancelOutcome.CANCELLING
            self.model.cancelling.add(job_id)
            assert job_id in self.queues["worker-1"].cancelling()

    @invariant()
    def every_job_is_in_exactly_one_place(self) -> None:
        connection = self.connection
        held = {
            name: sorted(f"{c.job_id}:{c.execution_id}" for c in claims) for name, claims in self.model.held.items()
        }
        for name in QUEUES:
            assert self._list(connection.lrange(f"rq:queue:{name}", 0, -1)) == self.model.waiting[name]
            assert suspect_groups(connection, name) == self.model.suspects[name]
            delayed = self._list(connection.zrange(f"rq:scheduled:{name}", 0, -1))
            assert sorted(delayed) == sorted(self.model.delayed[name])
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
