"""What the queue costs where it is long, and what submission costs: each measured in a process of its own."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from worker.client import prepare
from worker.queue.connection import connect
from worker.queue.job_queue import Acknowledgement, JobQueue
from worker.queue.submission import enqueue
from worker.records import AttemptState

BATCH_JOBS = 64  # claimed, renewed and acknowledged at once
NUM_BATCHES = 60
COPIES_PER_CALL = 1_000
PROMPT_WORDS = 60
SUBMIT = """
import atexit, sys
from scripts.benchmarks.memory import peak_rss_bytes
from worker.cli.main import main
atexit.register(lambda: print(peak_rss_bytes(), file=sys.stderr))
main()
"""

# Fills a queue with copies of one record: a million submissions would take minutes.
COPY_LUA = """
local fields = redis.call('HGETALL', 'rq:job:' .. ARGV[1])
for index = tonumber(ARGV[2]), tonumber(ARGV[3]) do
    local job_id = 'copy-' .. index
    redis.call('HSET', 'rq:job:' .. job_id, unpack(fields))
    redis.call('RPUSH', 'rq:queue:default', job_id)
end
"""


@dataclass(frozen=True, slots=True)
class DepthCost:
    """What claiming, renewing and acknowledging a job costs while `waiting` others wait."""

    waiting: int
    median_us_per_job: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SubmissionCost:
    """One run of `pagemill submit --jsonl`, from the start of its process to its end."""

    record: str  # where the jobs were recorded besides Redis
    jobs: int
    seconds: float
    jobs_per_second: float
    cpu_ms_per_job: float
    peak_rss_bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_depth(socket: str, waiting: int) -> DepthCost:
    """Keep `waiting` jobs in an emptied server's queue and measure batches of jobs on their way through it."""
    connection = connect(f"unix://{socket}", Path())
    connection.flushdb()
    (model,) = prepare(["a question"])
    list(enqueue(connection, [model]))
    for start in range(1, waiting, COPIES_PER_CALL):
        connection.eval(COPY_LUA, 0, model.job_id, start, min(start + COPIES_PER_CALL, waiting) - 1)
    queue = JobQueue(connection, "benchmark", 60.0)
    seconds = []
    for _ in range(NUM_BATCHES):
        list(enqueue(connection, prepare(["a question"] * BATCH_JOBS)))
        started = time.perf_counter()
        _take_batch(queue)
        seconds.append(time.perf_counter() - started)
    return DepthCost(waiting, median(seconds) / BATCH_JOBS * 1e6)


def _take_batch(queue: JobQueue) -> None:
    claims = queue.claim(["default"], BATCH_JOBS).claims
    assert len(claims) == BATCH_JOBS, f"only {len(claims)} jobs were claimed"
    queue.extend(claims)
    queue.acknowledge(Acknowledgement(claim, AttemptState.DONE, {"text": ""}) for claim in claims)


def write_prompts(path: Path, num_jobs: int) -> None:
    """Write a JSONL file of different prompts, about 400 bytes each."""
    words = [f"word{number}" for number in range(997)]
    with path.open("w") as file:
        for number in range(num_jobs):
            text = " ".join(words[(number * 31 + place * place) % 997] for place in range(PROMPT_WORDS))
            job = {"prompt": f"Question {number}: {text}", "max_tokens": 64, "custom_id": f"q-{number}"}
            file.write(json.dumps(job) + "\n")


def measure_submission(
    redis_url: str, prompts: Path, num_jobs: int, record: str, flags: Sequence[str]
) -> SubmissionCost:
    """Run `pagemill submit` on a file; the jobs are a batch."""
    command = [sys.executable, "-c", SUBMIT, "submit", "--jsonl", str(prompts), "--batch", "benchmark", *flags]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, env={**variables, "PAGEMILL_REDIS_URL": redis_url}, capture_output=True, text=True, check=False
    )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    num_ids = done.stdout.count("\n")
    assert (done.returncode, num_ids) == (0, num_jobs), f"{num_ids} of {num_jobs} jobs were submitted: {done.stderr}"
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return SubmissionCost(
        record=record,
        jobs=num_jobs,
        seconds=seconds,
        jobs_per_second=num_jobs / seconds,
        cpu_ms_per_job=cpu_s * 1e3 / num_jobs,
        peak_rss_bytes=int(done.stderr.split()[-1]),
    )
