"""The soak: workers and producers under one random fault after another, for as long as it is asked for."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from scripts.fault_table.database_rows import write_lock
from scripts.fault_table.proxy import Proxy, lose_reply_to, proxying
from scripts.fault_table.rows import STEP_SLEEP, Row, Trial, prompts
from scripts.fault_table.world import World
from worker.errors import ServiceUnavailable, TryLater
from worker.queue.connection import connect

NUM_WORKERS = 2
MOST_WAITING = 300  # no more are submitted above it
LONGEST_CALM_SECONDS = 2.0
FAULTS_PER_REPORT = 10
SETTLING_SECONDS = 600.0
VERBS = ("claim", "acknowledge", "extend", "requeue", "recover", "sweep")
SETTINGS: dict[str, Any] = {
    "lease_seconds": 4,
    "beat_seconds": 0.5,
    "sweep_seconds": 0.5,
    "reconcile_seconds": 2,
    "max_jobs": 16,
    "failpoints": STEP_SLEEP,
}


class Chaos:
    """A world in which things happen."""

    def __init__(self, world: World, proxy: Proxy, random: Random) -> None:
        self._world = world
        self._proxy = proxy
        self._random = random
        self.counts: Counter[str] = Counter()
        self._faults: dict[str, Callable[[], None]] = {
            "worker killed": self._kill_worker,
            "Redis killed": self._kill_redis,
            "Redis cut off": self._cut_redis,
            "reply lost": self._lose_reply,
            "all leases run out": self._expire_leases,
        }
        if world.database_url.startswith("sqlite"):
            self._faults["SQL locked"] = self._lock_sql

    def bring_about_one(self) -> None:
        """Let one fault happen, then some calm."""
        name = self._random.choice(list(self._faults))
        self.counts[name] += 1
        self._faults[name]()
        time.sleep(self._random.random() * LONGEST_CALM_SECONDS)

    def submit_some(self) -> None:
        """Submit jobs, unless many wait. What is refused is not accepted, and recorded jobs are."""
        with suppress(ServiceUnavailable, TryLater):
            connection = connect(self._proxy.url, self._world.folder)
            try:
                if connection.llen("rq:queue:default") < MOST_WAITING:
                    count = self._random.randint(1, 60)
                    self._world.submit(*prompts(count, random=self._random), connection=connection)
            finally:
                connection.close()

    def keep_workers(self) -> None:
        """Do what a supervisor does."""
        running = sum(worker.exit_code is None for worker in self._world.workers)
        for _ in range(NUM_WORKERS - running):
            self._world.start_worker(redis_url=self._proxy.url)

    def _kill_worker(self) -> None:
        running = [worker for worker in self._world.workers if worker.exit_code is None]
        if running:
            self._random.choice(running).kill()

    def _kill_redis(self) -> None:
        """Kill it with what it has not written to its disk; what was recorded in SQL comes back from there."""
        self._world.server.kill()
        time.sleep(self._random.random())
        self._world.server.start()

    def _cut_redis(self) -> None:
        self._proxy.cut()
        time.sleep(self._random.random() * 2)
        self._proxy.mend()

    def _lock_sql(self) -> None:
        with write_lock(self._world.sqlite_file):
            time.sleep(self._random.random() * 8)

    def _lose_reply(self) -> None:
        lose_reply_to(self._proxy, self._world.connection, self._random.choice(VERBS))

    def _expire_leases(self) -> None:
        connection: Any = self._world.connection
        members = connection.zrange("pagemill:leases:default", 0, -1)
        if members:
            connection.zadd("pagemill:leases:default", dict.fromkeys(members, 1.0), xx=True)


def soak(seconds: float, seed: int) -> Row:
    """Return a row, 0 of the table, that lasts for so many seconds and the time to settle."""

    def run(trial: Trial) -> None:
        random = Random(seed)
        on_postgresql = bool(seed % 2) and trial.has_postgresql
        with (
            trial.world(server=seed, postgresql=on_postgresql, **SETTINGS) as world,
            proxying(str(world.server.socket), world.folder / "p") as proxy,
        ):
            chaos = Chaos(world, proxy, random)
            ends_at = time.monotonic() + seconds
            while time.monotonic() < ends_at:
                chaos.submit_some()
                chaos.keep_workers()
                chaos.bring_about_one()
                if chaos.counts.total() % FAULTS_PER_REPORT == 0:
                    trial.report(f"{len(world.accepted)} jobs accepted; {dict(chaos.counts)}")
            proxy.lose_replies_to.clear()
            settling_until = time.monotonic() + SETTLING_SECONDS
            while world.tally().lost and time.monotonic() < settling_until:
                chaos.keep_workers()
                time.sleep(1)
            world.wait_for_ends()
            trial.note(f"seed {seed}: {dict(chaos.counts)}")

    return Row(0, f"soak of {seconds / 60:g} min", "0 lost, 0 doubled", run)
