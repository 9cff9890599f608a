"""Whatever Redis loses and whoever dies, every recorded job ends in SQL, and once: a state machine over both."""

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from sqlalchemy import update

from worker.client import enqueue, prepare
from worker.queue.crashes import CrashKind
from worker.queue.job_queue import JobQueue
from worker.queue.suspects import DeadWorker, Suspects
from worker.reconciling import RealRepairs, Reconciler
from worker.records import AttemptState, Claim, JobState, Outcome
from worker.running.outcomes import acknowledgement
from worker.sql.database import open_database, writing
from worker.sql.fleet import WorkerRecord
from worker.sql.recording import opened_recorder
from worker.sql.store import JobStore
from worker.sql.tables import WorkerRow


@dataclass
class Holder:
    """A worker: alive as long as it beats in SQL, and holding claims whatever Redis thinks of them."""

    queue: JobQueue
    held: list[Claim] = field(default_factory=list)


class LossyQueue(RuleBasedStateMachine):
    """Producers that record, workers that may die or be cut off, and a Redis that may lose anything."""

    connection: redis.Redis
    migrated: Path

    def __init__(self) -> None:
        super().__init__()
        self.connection.flushdb()
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"sqlite:///{shutil.copy(self.migrated, self.folder.name)}"
        self.database = open_database(self.url)
        self.store = JobStore(self.database)
        self.suspects = Suspects(self.connection, "somebody", 600.0)
        self.hired: list[str] = []
        self.accepted: list[str] = []
        self.done: set[str] = set()
        self.workers = [self._hire(), self._hire()]

    @rule(count=st.integers(1, 3))
    def submit(self, count: int) -> None:
        with opened_recorder(self.url) as recorder:
            for chunk in enqueue(self.connection, prepare(["x"] * count), recorder=recorder):
                self.accepted += chunk

    @rule()
    def wipe(self) -> None:
        self.connection.flushdb()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), what=st.sampled_from(["record", "entry", "both"]))
    def lose(self, data: st.DataObject, what: str) -> None:
        job_id = data.draw(st.sampled_from(self.accepted))
        if what != "entry":
            self.connection.delete(f"rq:job:{job_id}")
        if what != "record":
            self.connection.lrem("rq:queue:default", 0, job_id)

    @rule(place=st.sampled_from([0, 1]), limit=st.integers(1, 3))
    def claim(self, place: int, limit: int) -> None:
        worker = self.workers[place]
        claimed = worker.queue.claim(["default"], limit)
        assert claimed.dead == ()
        begun = self.store.begin_attempts(claimed.claims, worker.queue.worker_name)
        assert set(begun.terminal) <= self.done
        self._acknowledge(worker, [claim for claim in claimed.claims if claim.job_id in begun.terminal])
        worker.held += [claim for claim in claimed.claims if claim.job_id in begun.begun]

    @rule(place=st.sampled_from([0, 1]), data=st.data(), acknowledges=st.booleans())
    def finish(self, place: int, data: st.DataObject, acknowledges: bool) -> None:
        worker = self.workers[place]
        if not worker.held:
            return
        claim = worker.held.pop(data.draw(st.integers(0, len(worker.held) - 1)))
        if not self.store.finish_attempts([outcome_of(claim)]):
            assert claim.job_id not in self.done, "a second result"
            self.done.add(claim.job_id)
            if acknowledges:
                self._acknowledge(worker, [claim])

    @rule(place=st.sampled_from([0, 1]))
    def die(self, place: int) -> None:
        """A worker dies and is replaced; its leases stay until they run out."""
        self._silence(self.workers[place].queue.worker_name)
        self.workers[place] = self._hire()

    @rule()
    def release(self) -> None:
        """Dead workers' leases are released, and living ones': as if these had been cut off."""
        for name in self.hired:
            self.suspects.abandon(DeadWorker(name, CrashKind.SILENCE, None, frozenset()))

    @rule()
    def reconcile(self) -> None:
        repairs = RealRepairs(self.store, self.connection, 60)
        Reconciler(self.store, self.connection, repairs).run(lambda seen, total: None, lambda: False)

    def teardown(self) -> None:
        """All workers die; what is left must be brought back, and be done by others."""
        for place in (0, 1):
            self.die(place)
        self.release()
        for key in self.connection.scan_iter("rq:executions:*"):
            self.connection.delete(key)  # a minute and a half later
        self.reconcile()
        while self.connection.llen("rq:queue:default"):
            self.claim(0, 3)
            while self.workers[0].held:
                claim = self.workers[0].held.pop()
                assert self.store.finish_attempts([outcome_of(claim)]) == frozenset()
                assert claim.job_id not in self.done
                self.done.add(claim.job_id)
                self._acknowledge(self.workers[0], [claim])
        states = self.store.states(self.accepted)
        self.database.dispose()
        self.folder.cleanup()
        assert states == dict.fromkeys(self.accepted, JobState.DONE)
        assert self.done == set(self.accepted)

    def _hire(self) -> Holder:
        name = f"worker-{len(self.hired)}"
        self.hired.append(name)
        machine = ("host", 1, "m", "cpu", "none", 16, 1, 1, "0", "0", "0")
        self.store.register_worker(WorkerRecord(name, *machine, started_at=datetime.now(UTC)))
        return Holder(JobQueue(self.connection, name, 600.0))

    def _silence(self, name: str) -> None:
        with writing(self.database) as connection:
            past = datetime.now(UTC) - timedelta(hours=1)
            connection.execute(update(WorkerRow).where(WorkerRow.name == name).values(last_heartbeat_at=past))

    def _acknowledge(self, worker: Holder, claims: list[Claim]) -> None:
        worker.queue.acknowledge(acknowledgement(outcome_of(claim)) for claim in claims)


def outcome_of(claim: Claim) -> Outcome:
    return Outcome(claim, AttemptState.DONE, datetime.now(UTC), "yes", (1,), "stop", 1, 1, None, None, None)


def test_every_recorded_job_is_done_once(connection: redis.Redis, migrated_sqlite_file: Path) -> None:
    shared = connection

    class Machine(LossyQueue):
        connection = shared
        migrated = migrated_sqlite_file

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
