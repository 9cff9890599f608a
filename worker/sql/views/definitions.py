"""The views in SQL, for people and their tools. docs/sql.md documents every column of them.

Sums of whole numbers are cast back to BIGINT: PostgreSQL widens them to NUMERIC.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.sql.views import rolled

LATENCIES = ("queue_ms", "tokenize_ms", "ttft_ms", "itl_mean_ms", "itl_p99_ms", "e2e_ms")
DIMENSIONS = {"queue": "queue", "model": "model", "tenant": "tenant", "batch": "batch_id"}


@dataclass(frozen=True, slots=True)
class View:
    """A view by its name, and the SELECT that it is."""

    name: str
    select: str

    @property
    def statement(self) -> str:
        """What makes it."""
        return f"CREATE VIEW {self.name} AS {self.select}"


def views(dialect_name: str) -> tuple[View, ...]:
    """Return all views for "sqlite" or "postgresql", each behind those that it reads."""
    words = _WORDS[dialect_name]
    return (
        View("job_facts", JOB_FACTS),
        View("hourly_facts", rolled.hourly_facts(words.hour, words.since_rollup)),
        View("hourly_throughput", rolled.HOURLY_THROUGHPUT),
        View("latency_percentiles", _latency_percentiles()),
        View("memory_use", rolled.memory_use(words.since_rollup)),
        View("prefix_savings", rolled.PREFIX_SAVINGS),
        View("failures", rolled.failures(words.since_rollup)),
        View("wasted_tokens", rolled.wasted_tokens(words.since_rollup)),
        View("job_costs", _costs("jobs.id AS job_id", "jobs.queue", "jobs.model", "jobs.tenant", "jobs.batch_id")),
        View("batch_costs", _costs("jobs.batch_id")),
        View("tenant_costs", rolled.tenant_costs(words.since_rollup)),
        View("worker_costs", WORKER_COSTS),
        View("schedule_history", SCHEDULE_HISTORY),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """What the databases word differently, of `jobs.ended_at`."""

    hour: str  # its hour, UTC, in the form in which the database holds times
    since_rollup: str  # whether it is behind the hours that are rolled up


_WORDS = {
    "sqlite": _Words(
        "strftime('%Y-%m-%d %H:00:00.000000', jobs.ended_at)",
        "jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') "
        "FROM rolled_hours)",
    ),
    # That it is also before the end of time tells the planner how little there is likely to be in between.
    "postgresql": _Words(
        "date_trunc('hour', jobs.ended_at, 'UTC')",
        "jobs.ended_at >= (SELECT coalesce(max(hour) + interval '1 hour', '-infinity') FROM rolled_hours) "
        "AND jobs.ended_at < 'infinity'",
    ),
}

# Joins on unique keys: both databases leave out those whose columns a query does not ask for.
JOB_FACTS = """
SELECT
    jobs.id AS job_id,
    jobs.state,
    jobs.queue,
    jobs.tenant,
    jobs.model,
    jobs.batch_id,
    jobs.custom_id,
    jobs.enqueued_at,
    jobs.started_at,
    jobs.ended_at,
    jobs.deadline_at,
    jobs.attempt_count AS attempts,
    jobs.retry_count AS retries,
    jobs.error_code,
    jobs.error_message,
    results.finish_reason,
    results.prompt_tokens,
    results.completion_tokens,
    job_stats.prefix_hit_tokens,
    job_stats.preemptions,
    job_stats.queue_ms,
    job_stats.tokenize_ms,
    job_stats.ttft_ms,
    job_stats.itl_mean_ms,
    job_stats.itl_p99_ms,
    job_stats.e2e_ms,
    job_stats.kv_blocks_peak,
    job_stats.kv_bytes_peak,
    job_stats.kv_block_seconds,
    job_stats.kv_blocks_limit,
    job_stats.kv_block_seconds_limit,
    job_stats.drafted_tokens,
    job_stats.accepted_tokens,
    job_stats.memory_peak_bytes,
    latest.kv_block_seconds_share,
    latest.worker_name,
    (SELECT sum(attempts.engine_seconds) FROM attempts WHERE attempts.job_id = jobs.id) AS engine_seconds,
    (SELECT sum(attempts.wasted_engine_seconds) FROM attempts WHERE attempts.job_id = jobs.id) AS wasted_engine_seconds,
    (SELECT sum(attempts.engine_seconds * workers.price_per_engine_hour) / 3600
        FROM attempts JOIN workers ON workers.name = attempts.worker_name WHERE attempts.job_id = jobs.id) AS cost
FROM jobs
LEFT JOIN results ON results.job_id = jobs.id
LEFT JOIN job_stats ON job_stats.job_id = jobs.id
LEFT JOIN attempts AS latest ON latest.job_id = jobs.id AND latest.epoch = jobs.epoch
""".strip()


def _latency_percentiles() -> str:
    """One row for each latency of each queue, model, tenant and batch. Percentiles are by nearest rank."""
    figures = "\n    UNION ALL ".join(
        f"SELECT '{name}' AS dimension, {column} AS value, '{latency}' AS metric, {latency} AS ms "
        f"FROM job_facts WHERE state = 'done' AND {column} IS NOT NULL AND {latency} IS NOT NULL"
        for name, column in DIMENSIONS.items()
        for latency in LATENCIES
    )
    return f"""
SELECT
    dimension,
    value,
    metric,
    count(*) AS jobs,
    avg(ms) AS mean_ms,
    {_percentiles((50, 90, 95, 99))},
    max(ms) AS max_ms
FROM (
    SELECT dimension, value, metric, ms,
        row_number() OVER (PARTITION BY dimension, value, metric ORDER BY ms) AS rank,
        count(*) OVER (PARTITION BY dimension, value, metric) AS size
    FROM (
    {figures}
    ) AS figures
) AS ranked
GROUP BY dimension, value, metric
""".strip()


def _percentiles(percents: Sequence[int]) -> str:
    return ",\n    ".join(
        f"min(CASE WHEN rank * 100 >= size * {percent} THEN ms END) AS p{percent}_ms" for percent in percents
    )


def _costs(*columns: str) -> str:
    """Return what attempts cost, summed over the jobs that `columns` tell apart; no two currencies are added up."""
    keys = ", ".join(column.partition(" AS ")[0] for column in columns)
    return f"""
SELECT
    {", ".join(columns)},
    count(DISTINCT jobs.id) AS jobs,
    count(*) AS attempts,
    sum(attempts.engine_seconds) AS engine_seconds,
    sum(attempts.wasted_engine_seconds) AS wasted_engine_seconds,
    sum(attempts.kv_block_seconds_share) AS kv_block_seconds_share,
    sum(attempts.engine_seconds * workers.price_per_engine_hour) / 3600 AS cost,
    workers.price_currency AS currency
FROM attempts
JOIN jobs ON jobs.id = attempts.job_id
LEFT JOIN workers ON workers.name = attempts.worker_name
GROUP BY {keys}, workers.price_currency
""".strip()


WORKER_COSTS = """
SELECT
    worker_hours.worker_name,
    worker_hours.hour,
    workers.model,
    worker_hours.wall_seconds,
    worker_hours.engine_seconds,
    worker_hours.wasted_engine_seconds,
    worker_hours.idle_seconds,
    worker_hours.loading_seconds,
    worker_hours.overhead_seconds,
    worker_hours.wall_seconds * workers.price_per_engine_hour / 3600 AS cost,
    worker_hours.engine_seconds * workers.price_per_engine_hour / 3600 AS engine_cost,
    worker_hours.idle_seconds * workers.price_per_engine_hour / 3600 AS idle_cost,
    workers.price_currency AS currency
FROM worker_hours
JOIN workers ON workers.name = worker_hours.worker_name
""".strip()

SCHEDULE_HISTORY = """
SELECT
    schedules.name AS schedule,
    schedule_runs.kind,
    schedule_runs.slot_at,
    schedule_runs.last_slot_at,
    schedule_runs.num_slots AS slots,
    schedule_runs.state,
    schedule_runs.skip_reason,
    schedule_runs.message,
    schedule_runs.opened_at,
    schedule_runs.ended_at,
    schedule_runs.batch_id,
    schedule_runs.num_submitted AS jobs,
    (SELECT count(*) FROM jobs WHERE jobs.batch_id = schedule_runs.batch_id AND jobs.state = 'done') AS jobs_done,
    (SELECT count(*) FROM jobs WHERE jobs.batch_id = schedule_runs.batch_id AND jobs.state IN ('failed', 'dead'))
        AS jobs_failed,
    (SELECT max(jobs.ended_at) FROM jobs WHERE jobs.batch_id = schedule_runs.batch_id) AS last_job_ended_at
FROM schedule_runs
JOIN schedules ON schedules.id = schedule_runs.schedule_id
""".strip()
