"""Rows 1, 2, 12, 17 and 19: workers that are killed, crash, are told to stop or are cut off."""

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.fault_table.proxy import proxying
from scripts.fault_table.rows import SHORT_LEASES, STEP_SLEEP, Trial, attempts_of, prompts
from scripts.fault_table.world import World
from worker.errors import ExitCode
from worker.records import JobState

SAME_HOST_SECONDS = 5.0  # for orphans to run again once a worker of the same host has started
OTHER_HOST_SECONDS = 45.0
TAKEN_OVER = "taken-over"  # the file that a worker waits for, which was cut off


def run_again(world: World, orphans: Sequence[str]) -> bool:
    """Tell whether each of some jobs has ended, or runs in an attempt that is not its first."""
    details = [world.store.job(job_id) for job_id in orphans]
    return all(detail and (detail.ended_at or len(detail.attempts) > 1) for detail in details)


@dataclass(frozen=True, slots=True)
class Takeover:
    """What followed from a kill: the jobs that ran, and after how many seconds they ran again."""

    num_orphans: int
    seconds: float


def kill_mid_batch(trial: Trial) -> None:
    """Row 1. A worker is killed while 32 jobs run and 200 wait, each seed at another moment."""
    takeovers = [kill_one(trial, seed) for seed in range(trial.scale.num_seeds)]
    elsewhere = take_over_elsewhere(trial)
    num_orphans = sum(takeover.num_orphans for takeover in takeovers)
    slowest = max(takeover.seconds for takeover in takeovers)
    trial.check(slowest <= SAME_HOST_SECONDS, f"orphans ran again after {slowest:.1f} s on the same host")
    trial.check(elsewhere <= OTHER_HOST_SECONDS, f"orphans ran again after {elsewhere:.1f} s on another host")
    trial.note(
        f"{num_orphans} orphans, running again within {slowest:.1f} s on the same host; {elsewhere:.1f} s elsewhere"
    )


def kill_one(trial: Trial, seed: int) -> Takeover:
    """Kill a worker at a random moment and start another one on the same host."""
    trial.report(f"seed {seed + 1} of {trial.scale.num_seeds}")
    random = Random(seed)
    on_postgresql = bool(seed % 2) and trial.has_postgresql
    with trial.world(server=seed, postgresql=on_postgresql, failpoints=STEP_SLEEP) as world:
        world.submit(*prompts(232, random=random))
        worker = world.start_worker()
        wanted = random.randint(1, 60)

        def is_mid_batch() -> bool:
            return world.count(JobState.DONE) >= wanted and world.count(JobState.RUNNING) > 16

        world.wait_for(is_mid_batch, f"{wanted} jobs are done and others run")
        worker.kill()
        states = world.store.states(world.accepted)
        orphans = [job_id for job_id, state in states.items() if state is JobState.RUNNING]
        world.start_worker(failpoints="")
        world.wait_for(lambda: "drains" in world.workers[-1].log_text(), "the next worker is up")
        seconds = world.wait_for(lambda: run_again(world, orphans), "all orphans run again")
        world.wait_for_ends()
    return Takeover(len(orphans), seconds)


def take_over_elsewhere(trial: Trial) -> float:
    """Kill a worker while one of another host waits; return after how long all of its jobs ran again."""
    lease = trial.scale.pick(5, 30)
    settings: dict[str, Any] = {"lease_seconds": lease, "beat_seconds": lease / 6, "sweep_seconds": lease / 6}
    with trial.world(max_jobs=32, failpoints=STEP_SLEEP, **settings) as world:
        world.submit(*prompts(32, max_tokens=100))
        worker = world.start_worker()
        world.wait_for(lambda: world.count(JobState.RUNNING) == 32, "32 jobs run")
        # A host is known by its data folder, where dead workers leave word.
        world.start_worker(data_dir=world.folder / "elsewhere", failpoints="")
        orphans = list(world.accepted)
        worker.kill()
        seconds = world.wait_for(lambda: run_again(world, orphans), "all orphans run again")
        world.wait_for_ends()
    return seconds


def crash_between(trial: Trial) -> None:
    """Row 2. A worker kills itself at each point of a job's way; what it had committed is not generated again."""
    points = ("after_claim", "before_begin", "before_commit", "after_commit", "after_acknowledge")
    with trial.world(max_jobs=6, **SHORT_LEASES) as world:
        for point in points:
            trial.report(point)
            ids = world.submit(*prompts(12, max_tokens=12))
            worker = world.start_worker(failpoints=f"{point}=kill@2")
            code = world.wait_for_exit(worker)
            trial.check(code == -signal.SIGKILL, f"{point}: the worker ended with {code}")
            committed = [job_id for job_id in ids if world.store.states([job_id]).get(job_id) is JobState.DONE]
            tries = {job_id: len(attempts_of(world, job_id)) for job_id in committed}
            world.finish()
            again = [job_id for job_id in committed if len(attempts_of(world, job_id)) != tries[job_id]]
            trial.check(not again, f"{point}: {len(again)} committed jobs were generated again")
            if point in ("after_commit", "after_acknowledge"):
                trial.check(committed, f"{point}: nothing was committed before the crash")


def finish_supervised(world: World, **settings: object) -> None:
    """Let `pagemill worker` with its supervisor bring every accepted job to its end, and stop it."""
    supervisor = world.start_worker("--restart", **settings)
    world.wait_for_ends()
    supervisor.signal(signal.SIGTERM)
    world.wait_for_exit(supervisor)


def poison_prompt(trial: Trial) -> None:
    """Row 12. One prompt kills the process whenever it is in a step; the worker is started again each time, in the full
    form by its own supervisor."""
    with trial.world(max_jobs=32, **SHORT_LEASES) as world:
        jobs = prompts(16, max_tokens=24)
        jobs[5]["prompt"] = "This one is POISON to the model."
        ids = world.submit(*jobs)
        deadly = f"in_step(POISON)=kill,{STEP_SLEEP}"
        if trial.scale.is_quick:
            world.finish(failpoints=deadly)
        else:
            finish_supervised(world, failpoints=deadly)
        states = world.store.states(ids)
        innocent = [job_id for job_id in ids if job_id != ids[5]]
        trial.check(states[ids[5]] is JobState.DEAD, f"the culprit is {states[ids[5]].value}, not dead")
        harmed = [job_id for job_id in innocent if states[job_id] is not JobState.DONE]
        trial.check(not harmed, f"{len(harmed)} innocent batch-mates are not done")
        crashes = len(attempts_of(world, ids[5]))
        trial.check(1 <= crashes <= 3, f"{crashes} crashes")
        trial.note(f"{crashes} crashes before the culprit was dead-lettered")


def stop_in_order(trial: Trial) -> None:
    """Row 17. SIGTERM finishes what is held; a second one hands it back."""
    with trial.world(max_jobs=8, drain_seconds=30, failpoints=STEP_SLEEP) as world:
        world.submit(*prompts(24, max_tokens=200))
        worker = world.start_worker()
        world.wait_for(lambda: world.count(JobState.RUNNING) == 8, "8 jobs run")
        worker.signal(signal.SIGTERM)
        started = time.monotonic()
        code = world.wait_for_exit(worker)
        seconds = time.monotonic() - started
        done = world.count(JobState.DONE)
        trial.check(code == ExitCode.OK and seconds < 35, f"ended with {code} after {seconds:.1f} s")
        trial.check(done == 8, f"{done} of the 8 held jobs were finished")
        trial.note(f"drained in {seconds:.1f} s")

        worker = world.start_worker()
        world.wait_for(lambda: world.count(JobState.RUNNING) == 8, "8 more jobs run")
        worker.signal(signal.SIGTERM)
        time.sleep(0.2)
        worker.signal(signal.SIGTERM)
        started = time.monotonic()
        code = world.wait_for_exit(worker)
        seconds = time.monotonic() - started
        trial.check(code == ExitCode.OK and seconds <= 2, f"the second SIGTERM: {code} after {seconds:.1f} s")
        trial.check(world.count(JobState.RUNNING) == 0, "some jobs were not handed back")
        trial.note(f"handed back in {seconds:.1f} s")
        world.finish(failpoints="")


def cut_off(trial: Trial) -> None:
    """Row 19. A worker loses Redis, but not SQL, for longer than its lease, and computes on; another takes over.

    What the first has computed it writes only then.
    """
    lease = trial.scale.pick(3, 30)
    outage = 3 * lease
    settings: dict[str, Any] = {"lease_seconds": lease, "beat_seconds": lease / 6, "sweep_seconds": lease / 6}
    with trial.world(max_jobs=8, **settings) as world:
        with proxying(str(world.server.socket), world.folder / "p") as proxy:
            ids = world.submit(*prompts(8, max_tokens=30))
            first = world.start_worker(
                redis_url=proxy.url, failpoints=f"{STEP_SLEEP},before_commit=wait:{TAKEN_OVER}@1"
            )
            world.wait_for(lambda: world.count(JobState.RUNNING) == 8, "8 jobs run")
            proxy.cut()
            cut_at = time.monotonic()
            world.start_worker()
            world.wait_for(lambda: all(len(attempts_of(world, job_id)) > 1 for job_id in ids), "all are taken over")
            (world.folder / TAKEN_OVER).touch()
            world.wait_for(lambda: time.monotonic() - cut_at > outage, "the outage is over", outage + 1)
            proxy.mend()
            world.submit(*prompts(8, max_tokens=30))
            world.wait_for_ends()
            world.wait_for(lambda: world.tally().stale, "the fence rejects a stale write")
            trial.check(first.exit_code is None, "the worker that was cut off has ended")
        stale = world.tally().stale
        trial.note(f"cut off for {outage:g} s with a lease of {lease:g} s: {stale} stale writes were rejected")
