"""Suspects of crashes: whoever crashes, however it becomes known, the culprits alone are found guilty, and soon."""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rq.suspension import resume, suspend

from tests.queue.suspicion import claim_suspects, suspect_groups
from worker.client import submit
from worker.queue.claim_replies import Claimed
from worker.queue.crashes import CrashKind
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.suspects import Absolution, DeadWorker, Released, Suspects
from worker.records import AttemptState, Claim

QUEUES = ("high", "low")
MAX_TURNS = 500  # far above what it takes


class Fleet:
    """Workers without engines: they claim, and crash whenever a culprit is at work."""

    def __init__(self, connection: redis.Redis, culprits: frozenset[str], random: Random) -> None:
        self._connection = connection
        self._culprits = culprits
        self._random = random
        self._workers = [JobQueue(connection, f"worker-{number}", lease_seconds=600.0) for number in range(2)]
        self._suspects = [Suspects(connection, worker.worker_name, lease_seconds=600.0) for worker in self._workers]
        self.crashes: Counter[str] = Counter()  # by culprit at work
        self.dead: list[str] = []

    def take_turn(self) -> bool:
        """Let a worker claim something and finish it, or crash. Returns whether there was anything."""
        number = self._random.randrange(len(self._workers))
        worker = self._workers[number]
        claimed = self._claim(worker, self._suspects[number])
        worker.dead_letter(claimed.dead)
        self.dead += [record.job_id for record in claimed.dead]
        at_work = [claim for claim in claimed.claims if self._random.random() < 0.7]
        guilty = self._culprits & {claim.job_id for claim in at_work}
        self.crashes.update(guilty)
        if guilty:
            self._crash(worker.worker_name, claimed.claims, at_work)
        else:
            self._finish(worker, claimed.claims)
        return claimed.num_records > 0

    def _claim(self, worker: JobQueue, suspects: Suspects) -> Claimed:
        if not suspects.seek_duty(QUEUES):
            return worker.claim(QUEUES, self._random.randint(1, 40))
        claimed = suspects.claim()
        suspects.end_duty()
        return claimed

    def _finish(self, worker: JobQueue, claims: tuple[Claim, ...]) -> None:
        """End the jobs, save culprits and those that a worker gives back."""
        ended = [claim for claim in claims if claim.job_id not in self._culprits and self._random.random() < 0.7]
        worker.acknowledge(Acknowledgement(claim, AttemptState.DONE, {"text": "x"}) for claim in ended)
        worker.requeue(claim for claim in claims if claim not in ended)

    def _crash(self, name: str, held: tuple[Claim, ...], at_work: list[Claim]) -> None:
        if self._random.random() < 0.5:  # it leaves a journal
            execution_ids = frozenset(claim.execution_id for claim in at_work)
            for _ in range(self._random.randint(1, 2)):  # the second after a lost reply
                self._suspects[0].abandon(DeadWorker(name, CrashKind.DEATH, None, execution_ids))
            return
        for claim in held:
            self._connection.zadd(f"pagemill:leases:{claim.queue}", {f"{claim.job_id}:{claim.execution_id}": 1.0})
        self._workers[0].sweep(QUEUES)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.tuples(st.integers(0, 12), st.integers(1, 25)), num_culprits=st.integers(0, 3), seed=st.integers(0, 999)
)
def test_culprits_alone_are_dead_after_three_crashes_each(
    queue_connection: redis.Redis, sizes: tuple[int, int], num_culprits: int, seed: int
) -> None:
    queue_connection.flushdb()
    ids = [
        job_id
        for queue, size in zip(QUEUES, sizes, strict=True)
        for job_id in submit(queue_connection, ["x"] * size, queue=queue)
    ]
    random = Random(seed)
    culprits = frozenset(random.sample(ids, min(num_culprits, len(ids))))
    fleet = Fleet(queue_connection, culprits, random)
    turns = 0
    while fleet.take_turn():
        turns += 1
        assert turns < MAX_TURNS, "the queue is not drained"
    assert sorted(fleet.dead) == sorted(culprits)
    assert set(fleet.crashes) == culprits
    assert all(count <= 3 for count in fleet.crashes.values())
    finished: set[str] = set()
    for queue in QUEUES:
        members: Any = queue_connection.zrange(f"rq:finished:{queue}", 0, -1)
        finished.update(member.decode() for member in members)
    assert finished == set(ids) - culprits


def claim_all(queue: JobQueue, *names: str) -> tuple[Claim, ...]:
    return queue.claim(names or ("default",), 100).claims


def dead(worker: JobQueue, *at_work: Claim) -> DeadWorker:
    return DeadWorker(worker.worker_name, CrashKind.DEATH, 11, frozenset(claim.execution_id for claim in at_work))


@pytest.fixture
def suspects(queue_connection: redis.Redis) -> Suspects:
    """Another worker's dealings with suspects."""
    return Suspects(queue_connection, "worker-2", lease_seconds=60.0)


@pytest.mark.parametrize(("num_jobs", "sizes"), [(1, [1]), (2, [2]), (3, [1, 2]), (9, [3, 3, 3]), (32, [5, 5, 6] * 2)])
def test_first_crash_makes_about_as_many_groups_as_each_has_jobs(
    queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects, num_jobs: int, sizes: list[int]
) -> None:
    ids = submit(queue_connection, ["x"] * num_jobs)
    suspects.abandon(dead(worker_queue, *claim_all(worker_queue)))
    groups = suspect_groups(queue_connection)
    assert [job_id for group in groups for job_id in group] == list(ids)
    assert [len(group) for group in groups] == sizes


def test_jobs_that_were_only_held_go_back_to_the_head(
    queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects
) -> None:
    ids = submit(queue_connection, ["x"] * 4)
    claims = worker_queue.claim(["default"], 3).claims
    assert suspects.abandon(dead(worker_queue, claims[1])) == Released((ids[0], ids[2]), (ids[1],))
    assert queue_connection.lrange("rq:queue:default", 0, -1) == [ids[place].encode() for place in (0, 2, 3)]
    assert suspect_groups(queue_connection) == [[ids[1]]]
    assert queue_connection.hget(f"rq:job:{ids[0]}", "pagemill_crashes") is None


def test_leases_of_others_stand(queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects) -> None:
    submit(queue_connection, ["x"])
    claims = claim_all(worker_queue)
    assert suspects.abandon(DeadWorker("somebody", CrashKind.DEATH, None, None)) == Released((), ())
    assert worker_queue.extend(claims) == frozenset()


def test_one_worker_is_on_duty_until_it_ends_it_or_dies(
    queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects
) -> None:
    submit(queue_connection, ["x"] * 2)
    suspects.abandon(dead(worker_queue, *claim_all(worker_queue)))
    other = Suspects(queue_connection, "worker-3", lease_seconds=60.0)
    assert suspects.seek_duty(["low", "default"])
    assert suspects.duty == "default"
    assert not other.seek_duty(["default"])
    assert other.claim().num_records == 0
    suspects.renew_duty()
    suspects.end_duty()
    assert other.seek_duty(["default"])
    suspects.abandon(DeadWorker("worker-3", CrashKind.DEATH, None, frozenset()))
    assert suspects.seek_duty(["default"])
    assert len(suspects.claim().claims) == 2
    assert suspects.claim().num_records == 0
    assert suspects.duty is None


def test_suspects_wait_while_their_queue_is_paused_or_rq_suspended(
    queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects
) -> None:
    submit(queue_connection, ["x"])
    suspects.abandon(dead(worker_queue, *claim_all(worker_queue)))
    queue_connection.sadd("pagemill:paused", "default")
    assert not suspects.seek_duty(["default"])
    queue_connection.srem("pagemill:paused", "default")
    assert suspects.seek_duty(["default"])
    suspend(queue_connection)
    assert suspects.claim().num_records == 0
    resume(queue_connection)
    assert suspects.seek_duty(["default"])
    assert len(suspects.claim().claims) == 1


def test_suspect_that_is_handed_back_stays_apart(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, suspects: Suspects
) -> None:
    ids = submit(queue_connection, ["x"] * 2)
    suspects.abandon(dead(worker_queue, *claim_all(worker_queue)))
    other_queue.requeue(claim_suspects(queue_connection, other_queue).claims)
    assert suspect_groups(queue_connection) == [[job_id] for job_id in ids]


def test_job_that_comes_by_its_queue_is_no_suspect(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue
) -> None:
    """A producer or RQ's own tools may have put anything into its record."""
    (job_id,) = submit(queue_connection, ["x"])
    queue_connection.hset(f"rq:job:{job_id}", mapping={"pagemill_crashes": "3", "pagemill_crash_log": "?"})
    (claim,) = claim_all(worker_queue)
    assert claim.job_id == job_id
    assert worker_queue.recover([]).claims[0].execution_id == claim.execution_id
    worker_queue.requeue([claim])
    assert len(claim_all(other_queue)) == 1


def test_absolved_jobs_leave_their_group_for_the_head_of_the_queue(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, suspects: Suspects
) -> None:
    ids = submit(queue_connection, ["x"] * 5)
    claims = worker_queue.claim(["default"], 4).claims
    suspects.abandon(dead(worker_queue, *claims))
    assert suspect_groups(queue_connection) == [list(ids[:2]), list(ids[2:4])]
    assert suspects.absolve([claims[0], claims[3]]) == (Absolution.ABSOLVED,) * 2
    assert suspects.absolve([claims[0], claims[3]]) == (Absolution.NONE,) * 2
    assert suspect_groups(queue_connection) == [[ids[1]], [ids[2]]]
    assert {claim.job_id for claim in claim_all(other_queue)} == {ids[0], ids[3], ids[4]}
    assert suspects.absolve([claims[1], claims[2]]) == (Absolution.ABSOLVED,) * 2
    assert suspect_groups(queue_connection) == []


def test_absolution_may_come_too_late(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, suspects: Suspects
) -> None:
    submit(queue_connection, ["x"])
    claims = claim_all(worker_queue)
    for _ in range(3):
        last = claims
        suspects.abandon(dead(worker_queue, *claims))
        claimed = claim_suspects(queue_connection, worker_queue)
        claims = claimed.claims
    assert [record.error_code for record in claimed.dead] == ["poison"]
    worker_queue.dead_letter(claimed.dead)
    assert suspects.absolve(last) == (Absolution.TOO_LATE,)


def test_cancelled_suspect_does_not_run(
    queue_connection: redis.Redis, worker_queue: JobQueue, other_queue: JobQueue, suspects: Suspects
) -> None:
    ids = submit(queue_connection, ["x"] * 2)
    suspects.abandon(dead(worker_queue, *claim_all(worker_queue)))
    suspects_waiting = other_queue.counts(["default"])["default"].waiting
    assert suspects_waiting == 2
    other_queue.cancel(ids[0])
    assert [claim.job_id for claim in claim_suspects(queue_connection, other_queue).claims] == [ids[1]]


def test_nobody_is_guilty_in_company(queue_connection: redis.Redis, worker_queue: JobQueue, suspects: Suspects) -> None:
    """Two jobs with two crashes each never run together; but should they, one of them may be innocent."""
    ids = submit(queue_connection, ["x"] * 2)
    claims = claim_all(worker_queue)
    for job_id in ids:
        queue_connection.hset(f"rq:job:{job_id}", "pagemill_crashes", "2")
    suspects.abandon(dead(worker_queue, *claims))
    assert [queue_connection.hget(f"rq:job:{job_id}", "pagemill_crashes") for job_id in ids] == [b"2", b"2"]
    assert suspect_groups(queue_connection) == [[job_id] for job_id in ids]


@pytest.mark.parametrize(
    ("output_tokens", "num_crashes"),
    [((3, 3, 3), 3), ((9, 3, 3), 3), ((None, 5, None), 3), ((1, 2, 3, 3), 4), ((1, 2, 3, 4, 5, 6, 7), 6)],
)
def test_last_crash_must_repeat_the_one_before_or_be_the_sixth(
    queue_connection: redis.Redis,
    worker_queue: JobQueue,
    suspects: Suspects,
    output_tokens: tuple[int | None, ...],
    num_crashes: int,
) -> None:
    submit(queue_connection, ["x"])
    (claim,) = claim_all(worker_queue)
    for tokens in output_tokens:
        known = {} if tokens is None else {claim.execution_id: tokens}
        suspects.abandon(replace(dead(worker_queue, claim), output_tokens=known))
        claimed = claim_suspects(queue_connection, worker_queue)
        if claimed.dead:
            break
        (claim,) = claimed.claims
    (record,) = claimed.dead
    assert record.diagnosis is not None
    assert tuple(crash.output_tokens for crash in record.diagnosis.crashes) == output_tokens[:num_crashes]
