"""How many jobs a worker wants to claim now: what its engine can soon use. The rest is left to other workers."""

from collections.abc import Callable, Iterable

from engine.config import EngineConfig
from engine.request import RequestState
from engine.status import EngineStatus
from worker.jobs import num_outputs
from worker.running.held import HeldJob, HeldJobs

BYTES_PER_TOKEN = 4  # of a payload, as long as it is not tokenized: a guess on the low side for prose
BATCHES_HELD = 2  # one that runs, and one that waits to take its place
LOOKAHEAD_SHARE = 8  # one of so many requests of a full batch: claimed beyond what fits now


class Appetite:
    """Follows the engine's free blocks and seats through the held jobs.

    A job in the backlog (held, but not running) needs the blocks of its prompt, less the share that the prefix cache
    has lately been giving. While the backlog needs more blocks than are free, nothing is claimed: another worker may
    run at once what would only wait here. As soon as it fits, jobs are claimed to fill what is free, and some more, so
    that the engine never waits for a claim when blocks are freed.
    """

    def __init__(self, held: HeldJobs, config: EngineConfig, status: Callable[[], EngineStatus]) -> None:
        """`status` may be called from any thread."""
        self._held = held
        self._config = config
        self._status = status
        self._lookahead = max(1, config.max_num_seqs // LOOKAHEAD_SHARE)
        self._blocks_per_job: float | None = None  # of late; None before the first job was seen

    def num_jobs(self) -> int:
        """Return how many jobs to claim now, whatever the worker's own limit is."""
        jobs = self._held.unfinished()
        seats = BATCHES_HELD * self._config.max_num_seqs - sum(num_outputs(job.claim.job) for job in jobs)
        missed = 1.0 - prefix_hit_share(jobs)
        needs = [max(1.0, missed * self._num_blocks(job)) for job in jobs]
        if needs:
            self._blocks_per_job = sum(needs) / len(needs)
        status = self._status()
        backlog = sum(need for job, need in zip(jobs, needs, strict=True) if not _is_running(job))
        spare = status.num_blocks - status.blocks_held - backlog
        if spare < 0:
            return 0
        fitting = int(spare / self._blocks_per_job) if self._blocks_per_job else 0
        return max(0, min(seats, fitting + self._lookahead))

    def _num_blocks(self, job: HeldJob) -> int:
        """Return the blocks that a job takes until all its known tokens are computed; a guess until it is tokenized."""
        if job.request is not None:
            num_tokens = job.request.num_tokens
        else:
            num_tokens = len(job.prompt) or len(job.claim.payload_json) // BYTES_PER_TOKEN
        further = num_outputs(job.claim.job) - 1  # each has at least its last blocks to itself
        return self._config.most_blocks_of(num_tokens) + further * len(self._config.windows)


def prefix_hit_share(jobs: Iterable[HeldJob]) -> float:
    """Return the share of their prompts' tokens that admitted jobs found in the prefix cache; 0 where none is."""
    requests = [job.request for job in jobs if job.request is not None and job.request.figures.admitted_at is not None]
    num_tokens = sum(request.num_prompt_tokens for request in requests)
    return sum(request.figures.prefix_hit_tokens for request in requests) / num_tokens if num_tokens else 0.0


def _is_running(job: HeldJob) -> bool:
    return job.request is not None and job.request.state is RequestState.RUNNING
