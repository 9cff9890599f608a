"""Rows 14, 15 and 16: a model that runs out of memory, raises or computes NaN."""

import time

from scripts.fault_table.rows import SHORT_LEASES, STEP_SLEEP, Trial, prompts
from scripts.fault_table.world import World
from worker.errors import ExitCode
from worker.records import JobState

RESTART_SECONDS = 60.0


def count_spent_retries(world: World) -> int:
    """Return how many of the jobs' own retries were spent."""
    details = [world.store.job(job_id) for job_id in world.accepted]
    return sum(detail.retry_count for detail in details if detail)


def run_out_of_memory(trial: Trial) -> None:
    """Row 14. Two steps find no memory; one prompt never finds any. (torch's own error, raised before the step.)"""
    with trial.world(**SHORT_LEASES) as world:
        jobs = prompts(16, max_tokens=24)
        jobs[5]["prompt"] = "This one is HUGE."
        ids = world.submit(*jobs)
        worker = world.start_worker(failpoints=f"in_step=oom@3-4,in_step(HUGE)=oom,{STEP_SLEEP}")
        world.wait_for_ends()
        states = world.store.states(ids)
        trial.check(worker.exit_code is None, f"the worker ended with {worker.exit_code}")
        trial.check(states[ids[5]] is JobState.FAILED, f"what never fits is {states[ids[5]].value}, not failed")
        detail = world.store.job(ids[5])
        trial.note(f"the job that never fits ends with {detail.error_code if detail else None}")
        harmed = [job_id for job_id in ids if states[job_id] is not JobState.DONE and job_id != ids[5]]
        trial.check(not harmed, f"{len(harmed)} other jobs are not done")


def raise_in_step(trial: Trial) -> None:
    """Row 15. A step raises once; then every step raises, until the worker is started again."""
    with trial.world(**SHORT_LEASES) as world:
        world.submit(*prompts(16, max_tokens=24))
        worker = world.start_worker(failpoints=f"in_step=raise@3,{STEP_SLEEP}")
        world.wait_for_ends()
        trial.check(worker.exit_code is None, "one failed step ended the worker")
        trial.check(world.count(JobState.DONE) == 16, "one failed step ended jobs")
        worker.kill()

        world.submit(*prompts(16, max_tokens=24))
        worker = world.start_worker(failpoints=f"in_step=raise@3-,{STEP_SLEEP}")
        code = world.wait_for_exit(worker)
        trial.check(code == ExitCode.TRY_LATER, f"a model that always fails: exit code {code}, not 75")
        started = time.monotonic()
        world.start_worker()
        world.wait_for_ends(RESTART_SECONDS)
        trial.check(world.count(JobState.DONE) == 32, "not every job is done after the restart")
        spent = count_spent_retries(world)
        trial.check(not spent, f"{spent} retries of jobs were spent on the model's failures")
        trial.note(f"restarted by its supervisor after exit code 75; all done {time.monotonic() - started:.1f} s later")


def compute_nan(trial: Trial) -> None:
    """Row 16. NaN gets into the KV cache of one request, at its newest token."""
    jobs = prompts(16, max_tokens=24)
    jobs[5] |= {"prompt": "This one is SPOILT.", "max_retries": 0}
    with trial.world(**SHORT_LEASES) as world:
        sound = world.submit(*jobs)
        world.finish()
        faulty = world.submit(*jobs)
        worker = world.start_worker(failpoints="in_step(SPOILT)=nan@5")
        world.wait_for_ends()
        trial.check(worker.exit_code is None, f"the worker ended with {worker.exit_code}")
        spoilt = world.store.job(faulty[5])
        trial.check(spoilt and spoilt.error_code == "numerical_error", "the spoilt job does not say numerical_error")
        again = world.submit(jobs[5])
        world.wait_for_ends()
        expected, got = world.store.results(sound), world.store.results([*faulty, *again])
        pairs = [pair for pair in zip(sound, faulty, strict=True) if pair[1] != faulty[5]] + [(sound[5], again[0])]
        differing = sum(b not in got or expected[a].token_ids != got[b].token_ids for a, b in pairs)
        trial.check(not differing, f"{differing} outputs differ from those without the fault")
        trial.note("15 batch-mates, and the same prompt once more afterwards, are identical token for token")
