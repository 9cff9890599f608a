"""Row 11: wall clocks that are an hour off, and that move."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from scripts.fault_table.rows import SHORT_LEASES, STEP_SLEEP, Trial, prompts
from scripts.fault_table.schedules import add_schedule, check_slots, this_minute, wait_for_runs
from scripts.fault_table.world import World

MOVED_CLOCK = Path(__file__).parent / "moved_clock"
OFFSET_FILE = "FAULTS_CLOCK_OFFSET_FILE"
HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = datetime(2025, 10, 20, 2, 30, tzinfo=BERLIN)  # since then the clock was set back, and forward
PROGRAM = "from worker.cli.main import main; main()"


def move_clock(trial: Trial) -> None:
    """Row 11. A worker's wall clock is an hour ahead, then an hour behind; so is a producer's.

    The clock is that of Python's `time` and `datetime`, replaced before anything is imported. Schedules go by Redis's:
    one whose slot is half an hour away does not fire, one whose slot has come does, and one for 2:30 a.m. that nobody
    served since before the clock was last set has each of its nights settled once.
    """
    with trial.world(max_jobs=8, **SHORT_LEASES) as world:
        offset = world.folder / "offset"
        offset.write_text(str(HOUR))
        environ = {
            **world.environ,
            "PYTHONPATH": f"{MOVED_CLOCK}:{Path.cwd()}",
            OFFSET_FILE: str(offset),
            "TZ": "Europe/Berlin",
        }
        nights = add_schedules(world)
        submit_elsewhere(world, environ, 20)
        with (world.folder / "moved.log").open("wb") as log:
            moved = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "worker"],
                env={**environ, "PAGEMILL_FAILPOINTS": STEP_SLEEP},
                stdout=log,
                stderr=log,
            )
        try:
            world.wait_for(lambda: world.tally().done >= 4, "4 jobs are done by the worker with the moved clock")
            for name in ("due", "nightly"):
                wait_for_runs(world, name, 1)
            offset.write_text(str(-HOUR))
            world.start_worker(failpoints=STEP_SLEEP)
            submit_elsewhere(world, environ, 20)
            world.submit(*prompts(20))
            world.wait_for_ends()
            trial.check(moved.poll() is None, f"the worker ended with {moved.poll()}")
        finally:
            moved.kill()
            moved.wait()
        check_figures(trial, world)
        for name, number in (("due", 1), ("later", 0), ("nightly", nights)):
            check_slots(trial, world, name, number)
        trial.note(f"{nights} nights at 2:30 in Berlin, the clock set back and forward among them: each settled once")


def add_schedules(world: World) -> int:
    """Add the three schedules; return how many slots of the nightly one have come."""
    minute = this_minute()
    add_schedule(world, "due", "* * * * *", first=minute, last=minute)
    later = minute + timedelta(minutes=30)
    add_schedule(world, "later", "* * * * *", first=later, last=later)
    today = datetime.now(BERLIN)
    nights = (today.date() - NIGHT.date()).days + (today.time() >= NIGHT.time())
    add_schedule(
        world,
        "nightly",
        "30 2 * * *",
        first=NIGHT.astimezone(UTC),
        last=today.astimezone(UTC),
        time_zone=BERLIN.key,
    )
    return nights


def submit_elsewhere(world: World, environ: dict[str, str], count: int) -> None:
    """Submit jobs from a machine with the moved clock."""
    lines = "".join(
        f'{{"prompt": "question {number}", "max_tokens": 30, "ignore_eos": true}}\n' for number in range(count)
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "submit", "--jsonl", "-"],
        env=environ,
        input=lines,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    world.accepted += done.stdout.split()


def check_figures(trial: Trial, world: World) -> None:
    """No lease ran out, and no figure shows an hour that never was, save `queue_ms` of a producer that is behind."""
    tally = world.tally()
    trial.check(not tally.reruns, f"{tally.reruns} leases ran out although their workers were there")
    details = [detail for job_id in world.accepted if (detail := world.store.job(job_id))]
    stats = [detail.stats for detail in details if detail.stats]
    worst = max(max(stat.e2e_ms - stat.queue_ms, stat.ttft_ms or 0.0, stat.itl_p99_ms or 0.0) for stat in stats)
    least = min(min(stat.queue_ms, stat.e2e_ms, stat.ttft_ms or 0.0, stat.itl_mean_ms or 0.0) for stat in stats)
    trial.check(least >= 0, f"a latency is {least:.0f} ms")
    trial.check(worst < HOUR * 1000 / 2, f"a latency is {worst:.0f} ms")
    spans = [(a.ended_at - a.started_at).total_seconds() for detail in details for a in detail.attempts if a.ended_at]
    trial.check(min(spans) >= 0 and max(spans) < HOUR / 2, f"attempts last from {min(spans):.0f} to {max(spans):.0f} s")
    behind = sum(stat.queue_ms > HOUR * 1000 / 2 for stat in stats)
    trial.note(
        f"no lease ran out, no latency is negative or an hour long; queue_ms of {behind} jobs counts the hour by which "
        "their producer's clock is behind"
    )
