"""Rows 3, 4, 5, 6, 10, 13 and 18: what befalls the queue and its records."""

import random
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from scripts.fault_table.mutations import MUTATIONS, has_ended_by_its_own_word, real_record, sql_id
from scripts.fault_table.proxy import lose_reply_to, proxying
from scripts.fault_table.redis_server import running_server
from scripts.fault_table.rows import SHORT_LEASES, STEP_SLEEP, Trial, free_port, prompts
from scripts.fault_table.schedules import MINUTE, add_schedule, check_slots, this_minute, wait_for_runs
from scripts.fault_table.tally import count_jobs_in_sql
from scripts.fault_table.world import World
from worker.cron.leader import current_leader
from worker.errors import ExitCode
from worker.records import JobState

RECONCILING: dict[str, Any] = {**SHORT_LEASES, "reconcile_seconds": 2}
RECONNECT_SECONDS = 10.0
DELAYS_SECONDS = (1.0, 2.0, 3.0, 4.0)
SCHEDULES = ("one", "two", "three")
SLOTS = 5  # of each schedule
PROGRAM = "from worker.cli.main import main; main()"


def count_missing(world: World) -> int:
    """Return how many accepted jobs have no record in Redis."""
    with world.connection.pipeline(transaction=False) as pipeline:
        for job_id in world.accepted:
            pipeline.exists(f"rq:job:{job_id}")
        return pipeline.execute().count(0)


def kill_redis(trial: Trial) -> None:
    """Row 3. SIGKILL, and the append-only file as it was on the disk up to a second before: a power cut."""
    with trial.world(max_jobs=8, failpoints=STEP_SLEEP, **RECONCILING) as world:
        world.submit(*prompts(40))
        world.start_worker()
        world.wait_for(lambda: world.count(JobState.DONE) >= 8, "8 jobs are done")
        on_disk = world.server.append_only_files()
        world.submit(*prompts(40))
        time.sleep(0.8)
        world.server.kill()
        for path, size in on_disk.items():
            with path.open("r+b") as file:
                file.truncate(size)
        world.server.start()
        missing = count_missing(world)
        world.wait_for_ends()
        trial.check(missing, "Redis lost nothing, so that nothing was tested")
        trial.note(f"Redis lost {missing} jobs of its last second; SQL gave them back")


def wipe_redis(trial: Trial) -> None:
    """Row 4. FLUSHALL while jobs wait and run."""
    with trial.world(max_jobs=8, failpoints=STEP_SLEEP, **RECONCILING) as world:
        world.submit(*prompts(60))
        world.start_worker()
        world.wait_for(lambda: world.count(JobState.DONE) >= 8 and world.count(JobState.RUNNING), "8 jobs are done")
        in_flight = [id_ for id_, state in world.store.states(world.accepted).items() if state is JobState.RUNNING]
        world.connection.flushall()
        seconds = world.wait_for_ends()
        details = [world.store.job(job_id) for job_id in in_flight]
        kept = sum(len(detail.attempts) == 1 for detail in details if detail)
        trial.check(kept, "no result in flight was persisted")
        trial.note(f"{kept} of {len(in_flight)} results in flight were persisted; all ended in {seconds:.1f} s")


def fill_redis(trial: Trial) -> None:
    """Row 5. A producer fills Redis up to its maxmemory; a worker that starts on the full server drains it."""
    with trial.world(**SHORT_LEASES) as world:
        world.connection.config_set("maxmemory", world.connection.info("memory")["used_memory"] + 1_000_000)
        lines = "".join(f'{{"prompt": "{number} {_noise(number)}", "max_tokens": 4}}\n' for number in range(3000))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "submit", "--jsonl", "-", "--no-record"],
            env=dict(world.environ),
            input=lines,
            capture_output=True,
            text=True,
            check=False,
        )
        world.accepted += done.stdout.split()
        trial.check(done.returncode == ExitCode.TRY_LATER, f"the producer got exit code {done.returncode}, not 75")
        trial.check("full" in done.stderr and len(done.stderr.splitlines()) == 1, f"the producer read: {done.stderr}")
        trial.check(world.accepted, "nothing was accepted before Redis was full")
        world.start_worker()
        seconds = world.wait_for_ends()
        trial.note(f"{len(world.accepted)} jobs drained from the full server in {seconds:.1f} s")


def _noise(seed: int) -> str:
    return random.Random(seed).randbytes(150).hex()


def fail_over(trial: Trial) -> None:
    """Row 6. The replica lost touch a moment before its primary died, and takes its place."""
    port = str(free_port())
    with (
        trial.world(server_options={"port": port, "bind": "127.0.0.1"}, max_jobs=8, **RECONCILING) as world,
        proxying(str(world.server.socket), world.folder / "p") as proxy,
    ):
        following = running_server(world.server.binary, world.folder / "r", replicaof=f"127.0.0.1 {port}")
        replica = world.stack.enter_context(following)
        behind = world.stack.enter_context(closing(replica.connect()))
        world.wait_for(lambda: behind.info("replication")["master_link_status"] == "up", "the replica is in step")
        world.submit(*prompts(40))
        worker = world.start_worker(redis_url=proxy.url, failpoints=STEP_SLEEP)
        world.wait_for(lambda: world.count(JobState.DONE) >= 8, "8 jobs are done")
        behind.replicaof("NO", "ONE")  # what the primary writes from here on is lost
        world.submit(*prompts(40))
        time.sleep(1.0)
        world.server.kill()
        world.connection = behind
        missing = count_missing(world)
        proxy.lead_to(str(replica.socket))
        seen = behind.zcard("rq:finished:default")
        seconds = world.wait_for(lambda: behind.zcard("rq:finished:default") != seen, "the worker acknowledges again")
        world.wait_for_ends()
        trial.check(worker.exit_code is None, "the worker has ended")
        trial.check(missing, "nothing was lost, so that nothing was tested")
        trial.check(seconds <= RECONNECT_SECONDS, f"the worker was back after {seconds:.1f} s")
        trial.note(f"back after {seconds:.1f} s; the replica lacked {missing} jobs, SQL gave them back")


def deliver_thrice(trial: Trial) -> None:
    """Row 10. Each id stands three times in its queue, two workers claim, and replies are lost."""
    with trial.world(max_jobs=8, failpoints=STEP_SLEEP, **SHORT_LEASES) as world:
        with proxying(str(world.server.socket), world.folder / "p") as proxy:
            ids = world.submit(*prompts(60, max_tokens=12))
            for _ in range(2):
                world.connection.rpush("rq:queue:default", *ids)
            for verb in ("claim", "acknowledge", "extend", "claim", "acknowledge"):
                lose_reply_to(proxy, world.connection, verb)
            workers = [world.start_worker(redis_url=proxy.url)]
            # A worker that begins before it, on a busy machine, may leave nothing to claim.
            world.wait_for(lambda: len(proxy.lose_replies_to) < 5, "a reply is lost")
            workers.append(world.start_worker(redis_url=world.server.url))
            world.wait_for_ends()
            world.wait_for(lambda: not proxy.lose_replies_to or not world.count(JobState.RUNNING), "replies are lost")
            lost = 5 - len(proxy.lose_replies_to)
        rows = count_jobs_in_sql(world.database)
        trial.check(rows == len(ids), f"{len(ids)} jobs have {rows} rows")
        trial.check(lost >= 3, f"only {lost} replies were lost")
        trial.check(all(worker.exit_code is None for worker in workers), "a worker has ended")
        trial.check(not world.tally().reruns, f"{world.tally().reruns} jobs ran more than once")
        trial.note(f"{lost} replies lost, each id delivered three times: one row and one attempt a job")


def spoil_records(trial: Trial) -> None:
    """Row 13. A thousand records of a producer, each spoilt in one of many ways, among good ones."""
    chance = random.Random(20261129)
    with trial.world(**SHORT_LEASES) as world:
        connection: Any = world.connection
        (model_id,) = world.submit({"prompt": "a prompt to spoil", "max_tokens": 4, "metadata": {"k": "v"}})
        record = real_record(connection, model_id)
        good = list(world.submit(*prompts(50, max_tokens=4)))
        worker = world.start_worker()
        spoilt = []
        for number in range(1000):
            mutation = MUTATIONS[number % len(MUTATIONS)]
            spoilt.append(mutation(chance, connection, b"spoilt-%d" % number, record))
        world.wait_for(lambda: not connection.llen("rq:queue:default"), "the queue is empty")
        known = world.store.states(map(sql_id, spoilt))
        # What has no record, or one that says it has ended, was never accepted by anyone.
        world.accepted += [
            id_ for raw in spoilt if (id_ := sql_id(raw)) in known or not has_ended_by_its_own_word(connection, raw)
        ]
        world.wait_for_ends()
        trial.check(worker.exit_code is None, f"the worker ended with {worker.exit_code}")
        done = sum(state is JobState.DONE for state in world.store.states(good).values())
        trial.check(done == len(good), f"{done} of {len(good)} good jobs are done")
        trial.note(f"{world.count(JobState.DEAD)} dead-lettered raw; some mutations leave a valid job, which is run")


def shares_of(world: World) -> list[int]:
    """Return how many jobs each worker has done, as it last said."""
    return sorted(worker.counters.jobs_done for worker in world.store.workers())


def share_a_queue(trial: Trial) -> None:
    """Row 18. Two workers, one queue, many small jobs, a tenth of them delayed. Each worker is a scheduler, too: one of
    them leads, and five slots of each of three schedules fire once."""
    count = int(trial.scale.pick(1000, 10_000))
    with trial.world(postgresql=trial.has_postgresql, max_jobs=64, max_num_seqs=64) as world:
        num_delayed = count // 10
        world.submit(*prompts(count - num_delayed, max_tokens=2))
        for seconds in DELAYS_SECONDS:
            world.submit_delayed(*prompts(num_delayed // len(DELAYS_SECONDS), max_tokens=2), seconds=seconds)
        minute = this_minute()
        for name in SCHEDULES:
            add_schedule(world, name, "* * * * *", first=minute - (SLOTS - 1) * MINUTE, last=minute)
        for _ in range(2):
            world.start_worker()
        seconds = world.wait_for_ends(600)
        for name in SCHEDULES:
            wait_for_runs(world, name, SLOTS)
        world.wait_for_ends()
        for name in SCHEDULES:
            check_slots(trial, world, name, SLOTS)
        leader = current_leader(world.database)
        trial.check(leader is not None, "none of the schedulers led")
        tally = world.tally()
        trial.check(not tally.reruns, f"{tally.reruns} jobs ran more than once")
        world.wait_for(
            lambda: all(worker.counters.jobs_done for worker in world.store.workers()), "both workers took part"
        )
        shares = sorted(worker.counters.jobs_done for worker in world.store.workers())
        trial.check(all(shares), "one of the workers had nothing to do")
        trial.note(
            f"{tally.accepted} jobs in {seconds:.1f} s, shared {shares}, {num_delayed} of them delayed; "
            f"{len(SCHEDULES) * SLOTS} slots of schedules, each fired once"
        )
