"""Two workers under one fault after another: every job is done once, whatever happens in between."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest
import redis
from rq.job import Job, JobStatus

from scripts.fault_table.proxy import Proxy, lose_reply_to
from tests.worker.fakes import (
    Running,
    ScriptedRunner,
    ScriptError,
    answer,
    decode,
    eventually,
    make_flow,
    running,
    sql_outage,
)
from worker.client import submit
from worker.errors import ServiceUnavailable, TryLater
from worker.queue.job_queue import JobQueue
from worker.records import AttemptState, JobState
from worker.sql.store import JobStore

NUM_JOBS = 120
NUM_FAULTS = 9
MAX_FAILURES = 3
FAILURE_SHARE = 0.1
VERBS = ("claim", "acknowledge", "extend", "requeue", "recover", "sweep", "delay", "enqueue_due")
LEASES = "pagemill:leases:default"
FAULT_SECONDS = 0.3


class Fragile:
    """A detokenizer that fails on a job's output now and then, at most `MAX_FAILURES` times in a row."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._in_a_row: Counter[str] = Counter()
        self.num_failures = 0

    def __call__(self, token_ids: Sequence[int]) -> str:
        text = decode(token_ids)
        if text.endswith(">") and self._in_a_row[text] < MAX_FAILURES and self._random.random() < FAILURE_SHARE:
            self._in_a_row[text] += 1
            self.num_failures += 1
            raise ScriptError(text)
        self._in_a_row[text] = 0
        return text


class Chaos:
    """Workers, and the faults that befall them."""

    def __init__(
        self, seed: int, connection: redis.Redis, proxied: redis.Redis, proxy: Proxy, store: JobStore, file: Path
    ) -> None:
        self.random = Random(seed)
        self.fragile = Fragile(Random(seed))
        self._connection = connection
        self._proxied = proxied
        self._proxy = proxy
        self._store = store
        self._file = file
        self._num_started = 0
        self._workers: list[tuple[Running, ExitStack]] = []
        self.faults: tuple[Callable[[], None], ...] = (
            self.replace_a_worker,
            self.cut_redis,
            self.lock_sql,
            self.expire_all_leases,
            self.lose_a_reply,
        )

    def start_worker(self) -> None:
        """Start a worker that holds eight jobs and beats fast. Where a fault meets its start, it ends with an error."""
        self._num_started += 1
        flow = make_flow(
            self._proxied,
            self._store,
            ScriptedRunner(step_seconds=0.004),
            decode=self.fragile,
            name=f"worker-{self._num_started}",
            max_jobs=8,
            lease_seconds=4.0,
            beat_seconds=0.05,
            sweep_seconds=0.1,
            drain_seconds=0.0,
        )
        stack = ExitStack()
        self._workers.append((stack.enter_context(running(flow)), stack))

    def replace_a_worker(self) -> None:
        self.stop_worker(self.random.randrange(len(self._workers)))
        self.start_worker()

    def stop_worker(self, place: int) -> None:
        """Stop a worker; one that could not start, or could not hand everything back, says so."""
        worker, stack = self._workers.pop(place)
        with stack, suppress(ServiceUnavailable, TryLater):
            worker.stop_at_once()

    def replace_ended_workers(self) -> None:
        """Do what a supervisor does."""
        for place in reversed(range(len(self._workers))):
            if not self._workers[place][0].thread.is_alive():
                self.stop_worker(place)
                self.start_worker()

    def stop_all(self) -> None:
        while self._workers:
            self.stop_worker(0)

    def cut_redis(self) -> None:
        self._proxy.cut()
        time.sleep(FAULT_SECONDS)
        self._proxy.mend()

    def lock_sql(self) -> None:
        with sql_outage(self._file):
            time.sleep(FAULT_SECONDS)

    def expire_all_leases(self) -> None:
        """Let a third party find that every lease has run out."""
        members = self._connection.zrange(LEASES, 0, -1)
        if members:
            self._connection.zadd(LEASES, dict.fromkeys(members, 1.0))  # type: ignore[type-var]
        JobQueue(self._connection, "sweeper", 30.0).sweep(["default"])

    def lose_a_reply(self) -> None:
        lose_reply_to(self._proxy, self._connection, self.random.choice(VERBS))


@pytest.mark.parametrize("seed", range(3))
def test_every_job_is_done_once(
    connection: redis.Redis, proxied: redis.Redis, proxy: Proxy, sqlite_store: JobStore, sqlite_file: Path, seed: int
) -> None:
    chaos = Chaos(seed, connection, proxied, proxy, sqlite_store, sqlite_file)
    prompts = [f"job {number} " + "x" * (number % 100) for number in range(NUM_JOBS)]
    ids = submit(connection, [{"prompt": prompt, "max_retries": 20} for prompt in prompts])
    for _ in range(2):
        chaos.start_worker()
    try:
        for _ in range(NUM_FAULTS):
            chaos.random.choice(chaos.faults)()
            time.sleep(chaos.random.random() * 0.1)
            chaos.replace_ended_workers()
        eventually(lambda: set(sqlite_store.states(ids).values()) == {JobState.DONE})
        eventually(lambda: connection.zcard("rq:finished:default") == NUM_JOBS)
    finally:
        proxy.lose_replies_to.clear()
        chaos.stop_all()
    eventually(lambda: not connection.pubsub_channels("rq:pubsub:*"), "no worker that has ended listens")
    assert len(sqlite_store.states(ids)) == NUM_JOBS
    results = sqlite_store.results(ids)
    for prompt, job_id in zip(prompts, ids, strict=True):
        assert results[job_id].text == answer(prompt)
        detail = sqlite_store.job(job_id)
        assert detail is not None
        states = [attempt.state for attempt in detail.attempts]
        assert states.count(AttemptState.DONE) == 1
        assert set(states) <= {AttemptState.DONE, AttemptState.LOST, AttemptState.REQUEUED, AttemptState.FAILED}
        assert states.count(AttemptState.FAILED) == detail.retry_count  # hand-backs and lost leases spend none
        assert Job.fetch(job_id, connection=connection, serializer="json").get_status() is JobStatus.FINISHED
    assert connection.llen("rq:queue:default") == 0
    assert connection.zcard(LEASES) == 0
    assert connection.zcard("rq:scheduled:default") == 0
    assert chaos.fragile.num_failures
