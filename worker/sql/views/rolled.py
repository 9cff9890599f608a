"""The views of sums over many jobs: hours that are rolled up from their roll-ups, what ended since from the rows.

So they are as fast over ten million jobs as over a thousand. What they count is what `worker.sql.rollups.measures`
counts, in plain SQL.
"""


def hourly_facts(hour: str, since: str) -> str:
    """Return every sum by hour, queue, model and tenant. `since` tells whether a job ended after the last roll-up."""
    return f"""
SELECT hour, queue, model, tenant, jobs_done, jobs_failed, jobs_cancelled, jobs_dead, jobs_with_retries, attempts,
    prompt_tokens, completion_tokens, preemptions, jobs_with_prefix_figures, jobs_with_hit, prefix_prompt_tokens,
    prefix_hit_tokens, kv_block_seconds, kv_block_seconds_limit, kv_block_seconds_share,
    saved_against_limit_block_seconds, saved_by_sharing_block_seconds
FROM hourly_totals
UNION ALL
SELECT
    {hour} AS hour,
    jobs.queue,
    jobs.model,
    jobs.tenant,
    count(*) FILTER (WHERE jobs.state = 'done'),
    count(*) FILTER (WHERE jobs.state = 'failed'),
    count(*) FILTER (WHERE jobs.state = 'cancelled'),
    count(*) FILTER (WHERE jobs.state = 'dead'),
    count(*) FILTER (WHERE jobs.attempt_count > 1),
    CAST(sum(jobs.attempt_count) AS BIGINT),
    CAST(coalesce(sum(results.prompt_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(results.completion_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(job_stats.preemptions), 0) AS BIGINT),
    count(*) FILTER (WHERE results.job_id IS NOT NULL AND job_stats.job_id IS NOT NULL),
    count(*) FILTER (WHERE results.job_id IS NOT NULL AND job_stats.prefix_hit_tokens > 0),
    CAST(coalesce(sum(results.prompt_tokens) FILTER (WHERE job_stats.job_id IS NOT NULL), 0) AS BIGINT),
    CAST(coalesce(sum(job_stats.prefix_hit_tokens) FILTER (WHERE results.job_id IS NOT NULL), 0) AS BIGINT),
    coalesce(sum(job_stats.kv_block_seconds), 0.0),
    sum(job_stats.kv_block_seconds_limit),
    sum(latest.kv_block_seconds_share) FILTER (WHERE job_stats.job_id IS NOT NULL),
    sum(job_stats.kv_block_seconds_limit - job_stats.kv_block_seconds),
    sum(job_stats.kv_block_seconds - latest.kv_block_seconds_share)
FROM jobs
LEFT JOIN results ON results.job_id = jobs.id
LEFT JOIN job_stats ON job_stats.job_id = jobs.id
LEFT JOIN attempts AS latest ON latest.job_id = jobs.id AND latest.epoch = jobs.epoch
WHERE {since}
GROUP BY {hour}, jobs.queue, jobs.model, jobs.tenant
""".strip()


HOURLY_THROUGHPUT = """
SELECT
    hour,
    queue,
    model,
    tenant,
    jobs_done + jobs_failed + jobs_cancelled + jobs_dead AS jobs,
    jobs_done,
    jobs_failed + jobs_dead AS jobs_failed,
    jobs_cancelled,
    prompt_tokens,
    completion_tokens,
    CAST(completion_tokens AS DOUBLE PRECISION) / 3600 AS completion_tokens_per_s
FROM hourly_facts
""".strip()

PREFIX_SAVINGS = """
SELECT
    queue,
    model,
    tenant,
    CAST(sum(jobs_with_prefix_figures) AS BIGINT) AS jobs,
    CAST(sum(jobs_with_hit) AS BIGINT) AS jobs_with_hit,
    CAST(sum(prefix_prompt_tokens) AS BIGINT) AS prompt_tokens,
    CAST(sum(prefix_hit_tokens) AS BIGINT) AS prefix_hit_tokens,
    CAST(sum(prefix_prompt_tokens) - sum(prefix_hit_tokens) AS BIGINT) AS computed_prompt_tokens,
    CAST(sum(prefix_hit_tokens) AS DOUBLE PRECISION) / nullif(CAST(sum(prefix_prompt_tokens) AS DOUBLE PRECISION), 0)
        AS hit_share
FROM hourly_facts
WHERE jobs_with_prefix_figures > 0
GROUP BY queue, model, tenant
""".strip()


def memory_use(since: str) -> str:
    """Return peaks and savings by queue, model and tenant.

    What was saved counts the jobs for which it is known: workers of earlier versions did not write it.
    """
    return f"""
SELECT
    queue,
    model,
    tenant,
    CAST(sum(jobs) AS BIGINT) AS jobs,
    CAST(max(blocks_largest) AS BIGINT) AS kv_blocks_peak_max,
    CAST(sum(blocks_total) AS DOUBLE PRECISION) / CAST(sum(jobs) AS DOUBLE PRECISION) AS kv_blocks_peak_mean,
    CAST(max(bytes_largest) AS BIGINT) AS kv_bytes_peak_max,
    CAST(sum(bytes_total) AS DOUBLE PRECISION) / CAST(sum(jobs) AS DOUBLE PRECISION) AS kv_bytes_peak_mean,
    CAST(max(memory_largest) AS BIGINT) AS memory_peak_bytes_max,
    sum(kv_block_seconds) AS kv_block_seconds,
    sum(kv_block_seconds_limit) AS kv_block_seconds_limit,
    sum(kv_block_seconds_share) AS kv_block_seconds_share,
    sum(saved_against_limit) AS saved_against_limit_block_seconds,
    sum(saved_against_limit) / nullif(sum(kv_block_seconds_limit), 0) AS saved_against_limit_share,
    sum(saved_by_sharing) AS saved_by_sharing_block_seconds,
    sum(saved_by_sharing) / nullif(sum(kv_block_seconds_share) + sum(saved_by_sharing), 0) AS saved_by_sharing_share
FROM (
    SELECT queue, model, tenant,
        CASE WHEN metric = 'kv_blocks_peak' THEN jobs ELSE 0 END AS jobs,
        CASE WHEN metric = 'kv_blocks_peak' THEN largest END AS blocks_largest,
        CASE WHEN metric = 'kv_blocks_peak' THEN total END AS blocks_total,
        CASE WHEN metric = 'kv_bytes_peak' THEN largest END AS bytes_largest,
        CASE WHEN metric = 'kv_bytes_peak' THEN total END AS bytes_total,
        CASE WHEN metric = 'memory_peak_bytes' THEN largest END AS memory_largest,
        NULL AS kv_block_seconds, NULL AS kv_block_seconds_limit, NULL AS kv_block_seconds_share,
        NULL AS saved_against_limit, NULL AS saved_by_sharing
    FROM hourly_figures
    WHERE metric IN ('kv_blocks_peak', 'kv_bytes_peak', 'memory_peak_bytes')
    UNION ALL
    SELECT queue, model, tenant, 0, NULL, NULL, NULL, NULL, NULL, kv_block_seconds, kv_block_seconds_limit,
        kv_block_seconds_share, saved_against_limit_block_seconds, saved_by_sharing_block_seconds
    FROM hourly_facts
    UNION ALL
    SELECT jobs.queue, jobs.model, jobs.tenant, 1, job_stats.kv_blocks_peak, job_stats.kv_blocks_peak,
        job_stats.kv_bytes_peak, job_stats.kv_bytes_peak, job_stats.memory_peak_bytes, NULL, NULL, NULL, NULL, NULL
    FROM jobs
    JOIN job_stats ON job_stats.job_id = jobs.id
    WHERE {since}
) AS parts
GROUP BY queue, model, tenant
HAVING sum(jobs) > 0
""".strip()


def failures(since: str) -> str:
    """Return failed and dead jobs by why."""
    return f"""
SELECT
    error_code,
    state,
    queue,
    model,
    tenant,
    CAST(sum(jobs) AS BIGINT) AS jobs,
    min(first_at) AS first_at,
    max(last_at) AS last_at,
    min(example_message) AS example_message
FROM (
    SELECT error_code, state, queue, model, tenant, jobs, first_at, last_at, example_message
    FROM hourly_failures
    UNION ALL
    SELECT coalesce(jobs.error_code, 'unknown'), jobs.state, jobs.queue, jobs.model, jobs.tenant, 1, jobs.ended_at,
        jobs.ended_at, jobs.error_message
    FROM jobs
    WHERE jobs.state IN ('failed', 'dead') AND {since}
) AS parts
GROUP BY error_code, state, queue, model, tenant
""".strip()


def wasted_tokens(since: str) -> str:
    """Return what was computed for nothing, by why."""
    return f"""
SELECT
    reason,
    queue,
    model,
    tenant,
    CAST(sum(attempts) AS BIGINT) AS attempts,
    CAST(sum(wasted_tokens) AS BIGINT) AS wasted_tokens,
    sum(wasted_engine_seconds) AS wasted_engine_seconds
FROM (
    SELECT reason, queue, model, tenant, attempts, wasted_tokens, wasted_engine_seconds
    FROM hourly_waste
    UNION ALL
    SELECT reason, queue, model, tenant, 1,
        coalesce(CASE WHEN reason = 'recomputed' THEN recomputed_tokens ELSE computed_tokens END, 0),
        coalesce(CASE WHEN reason = 'recomputed' THEN wasted_engine_seconds ELSE engine_seconds END, 0.0)
    FROM (
        SELECT
            CASE
                WHEN attempts.error_code = 'fenced' THEN 'fenced'
                WHEN attempts.state = 'lost' THEN 'lost'
                WHEN attempts.state = 'requeued' THEN 'handed_back'
                WHEN attempts.state = 'failed' AND attempts.epoch <> jobs.epoch THEN 'retried'
                ELSE 'recomputed'
            END AS reason,
            jobs.queue, jobs.model, jobs.tenant, attempts.computed_tokens, attempts.recomputed_tokens,
            attempts.engine_seconds, attempts.wasted_engine_seconds
        FROM jobs
        JOIN attempts ON attempts.job_id = jobs.id
        WHERE attempts.state <> 'running' AND {since}
    ) AS ended
    WHERE reason <> 'recomputed' OR recomputed_tokens > 0 OR wasted_engine_seconds > 0
) AS parts
GROUP BY reason, queue, model, tenant
""".strip()


def tenant_costs(since: str) -> str:
    """Return what the jobs of each tenant cost; no two currencies are added up."""
    return f"""
SELECT
    tenant,
    CAST(sum(jobs) AS BIGINT) AS jobs,
    CAST(sum(attempts) AS BIGINT) AS attempts,
    sum(engine_seconds) AS engine_seconds,
    sum(wasted_engine_seconds) AS wasted_engine_seconds,
    sum(kv_block_seconds_share) AS kv_block_seconds_share,
    sum(cost) AS cost,
    currency
FROM (
    SELECT tenant, currency, jobs, attempts, engine_seconds, wasted_engine_seconds, kv_block_seconds_share, cost
    FROM hourly_costs
    UNION ALL
    SELECT jobs.tenant, workers.price_currency, CASE WHEN attempts.epoch = jobs.epoch THEN 1 ELSE 0 END, 1,
        coalesce(attempts.engine_seconds, 0.0), coalesce(attempts.wasted_engine_seconds, 0.0),
        coalesce(attempts.kv_block_seconds_share, 0.0),
        attempts.engine_seconds * workers.price_per_engine_hour / 3600
    FROM jobs
    JOIN attempts ON attempts.job_id = jobs.id
    LEFT JOIN workers ON workers.name = attempts.worker_name
    WHERE {since}
) AS parts
GROUP BY tenant, currency
""".strip()
