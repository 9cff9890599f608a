"""What a worker counts as its jobs pass, where their figures are known anyway: off the engine's thread."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from prometheus_client.metrics_core import Metric

from engine.request import Request
from worker.metrics.counting import Counter, Histogram, LabelledCounter
from worker.records import AttemptState, DeadRecord, JobStats, Outcome

MS = 1000.0  # milliseconds in a second
FINISH_REASONS = ("stop", "stop_string", "length")
JOB_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21_600, 86_400)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)


class JobTally:
    """Counters and histograms over the jobs of one worker, since it started. From any thread."""

    def __init__(self) -> None:
        self._claims = Counter("pagemill_claims", "Jobs claimed, those of lost replies included")
        self._success = LabelledCounter(
            "pagemill_request_success",
            "Jobs that are done, by why their output ended",
            "finished_reason",
            FINISH_REASONS,
        )
        self._failures = LabelledCounter("pagemill_job_failures", "Jobs that failed for good, by error code", "code")
        self._dead = LabelledCounter("pagemill_dead_letters", "Records dead-lettered, by error code", "code")
        self._cancelled = Counter("pagemill_jobs_cancelled", "Jobs that ended as cancelled")
        self._retries = Counter("pagemill_job_retries", "Attempts that failed and are followed by another")
        self._requeues = Counter("pagemill_job_requeues", "Jobs handed back for no fault of their own")
        self._fenced = Counter(
            "pagemill_fenced_results", "Results dropped, since another worker had taken the job over"
        )
        self._prompt_tokens = Counter("pagemill_prompt_tokens", "Prompt tokens of finished requests")
        self._queries = Counter("pagemill_prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self._hits = Counter("pagemill_prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self._ttft = Histogram("pagemill_time_to_first_token_seconds", "Claim to first output token", JOB_SECONDS)
        self._itl = Histogram("pagemill_inter_token_latency_seconds", "Between two output tokens", TOKEN_SECONDS)
        self._e2e = Histogram("pagemill_e2e_request_latency_seconds", "Submission to last token", JOB_SECONDS)
        self._queue = Histogram("pagemill_request_queue_time_seconds", "Submission to claim", JOB_SECONDS)
        self._tokenize = Histogram("pagemill_request_tokenize_time_seconds", "Prompt to token ids", TOKEN_SECONDS)
        self._prompt_length = Histogram("pagemill_request_prompt_tokens", "Prompt tokens of a request", TOKENS)
        self._generation_length = Histogram("pagemill_request_generation_tokens", "Output tokens of a request", TOKENS)

    def note_claims(self, num_claims: int) -> None:
        """Count claimed jobs."""
        self._claims.add(num_claims)

    def note_request(self, request: Request, *, has_new_prompt: bool) -> None:
        """Count a request that the engine has finished, whatever the reason; of several that share a prompt, the prompt
        with one of them only."""
        if has_new_prompt:
            num_prompt = request.num_prompt_tokens
            self._prompt_tokens.add(num_prompt)
            self._queries.add(num_prompt)
            self._hits.add(request.figures.prefix_hit_tokens)
            self._prompt_length.add([num_prompt])
        self._generation_length.add([request.num_output_tokens])
        self._itl.add(later - earlier for earlier, later in pairwise(request.figures.token_times))

    def note_ends(self, outcomes: Sequence[Outcome]) -> None:
        """Count jobs that have ended, in SQL and in Redis."""
        self._success.add(outcome.finish_reason or "" for outcome in outcomes if outcome.state is AttemptState.DONE)
        self._failures.add(outcome.error_code or "" for outcome in outcomes if outcome.state is AttemptState.FAILED)
        self._cancelled.add(sum(outcome.state is AttemptState.CANCELLED for outcome in outcomes))
        self._note_stats([outcome.stats for outcome in outcomes if outcome.stats is not None])

    def note_given_back(self, outcome: Outcome) -> None:
        """Count an attempt's end that is not its job's."""
        (self._retries if outcome.state is AttemptState.FAILED else self._requeues).add(1)

    def note_fenced(self) -> None:
        """Count a result that came too late."""
        self._fenced.add(1)

    def note_dead(self, records: Iterable[DeadRecord]) -> None:
        """Count dead-lettered records."""
        self._dead.add(record.error_code for record in records)

    def _note_stats(self, stats: Sequence[JobStats]) -> None:
        self._ttft.add(job.ttft_ms / MS for job in stats if job.ttft_ms is not None)
        self._e2e.add(job.e2e_ms / MS for job in stats)
        self._queue.add(job.queue_ms / MS for job in stats)
        self._tokenize.add(job.tokenize_ms / MS for job in stats)

    def families(self) -> Iterator[Metric]:
        """Yield all that was counted."""
        for counted in vars(self).values():
            yield counted.family()
