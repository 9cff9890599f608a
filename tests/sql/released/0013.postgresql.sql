CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.api_files (
    id text NOT NULL,
    tenant text NOT NULL,
    filename text NOT NULL,
    purpose text NOT NULL,
    num_bytes bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone
);
CREATE TABLE public.api_keys (
    id text NOT NULL,
    tenant text NOT NULL,
    name text,
    key_hash text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    revoked_at timestamp with time zone
);
CREATE TABLE public.attempts (
    id bigint NOT NULL,
    job_id text NOT NULL,
    epoch bigint NOT NULL,
    worker_name text NOT NULL,
    state character varying(16) NOT NULL,
    started_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    error_code text,
    error_message text,
    engine_seconds double precision,
    wasted_engine_seconds double precision,
    kv_block_seconds_share double precision,
    computed_tokens bigint,
    recomputed_tokens bigint,
    tokenized_ms double precision,
    admitted_ms double precision,
    first_token_ms double precision,
    last_token_ms double precision,
    committed_ms double precision,
    CONSTRAINT ck_attempts_state CHECK (((state)::text = ANY ((ARRAY['running'::character varying, 'done'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'requeued'::character varying, 'lost'::character varying])::text[])))
);
CREATE SEQUENCE public.attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.attempts_id_seq OWNED BY public.attempts.id;
CREATE TABLE public.jobs (
    id text NOT NULL,
    queue text NOT NULL,
    tenant text,
    model text,
    batch_id text,
    custom_id text,
    payload text NOT NULL,
    state character varying(16) NOT NULL,
    epoch bigint NOT NULL,
    attempt_count bigint NOT NULL,
    error_code text,
    error_message text,
    enqueued_at timestamp with time zone,
    started_at timestamp with time zone,
    ended_at timestamp with time zone,
    diagnosis text,
    deadline_at timestamp with time zone,
    retry_at timestamp with time zone,
    retry_count bigint DEFAULT '0'::bigint NOT NULL,
    CONSTRAINT ck_jobs_attempt_count CHECK ((attempt_count >= 0)),
    CONSTRAINT ck_jobs_epoch CHECK ((epoch >= 0)),
    CONSTRAINT ck_jobs_state CHECK (((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying, 'done'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'dead'::character varying])::text[])))
);
CREATE TABLE public.workers (
    name text NOT NULL,
    hostname text NOT NULL,
    pid bigint NOT NULL,
    model text NOT NULL,
    device text NOT NULL,
    dtype text NOT NULL,
    block_size bigint NOT NULL,
    num_blocks bigint NOT NULL,
    bytes_per_block bigint NOT NULL,
    pagemill_version text NOT NULL,
    torch_version text NOT NULL,
    transformers_version text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    last_heartbeat_at timestamp with time zone NOT NULL,
    stopped_at timestamp with time zone,
    jobs_done bigint NOT NULL,
    jobs_failed bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    prefix_hit_tokens bigint NOT NULL,
    engine_answered_at timestamp with time zone,
    price_per_engine_hour double precision,
    price_currency text
);
CREATE VIEW public.batch_costs AS
 SELECT jobs.batch_id,
    count(DISTINCT jobs.id) AS jobs,
    count(*) AS attempts,
    sum(attempts.engine_seconds) AS engine_seconds,
    sum(attempts.wasted_engine_seconds) AS wasted_engine_seconds,
    sum(attempts.kv_block_seconds_share) AS kv_block_seconds_share,
    (sum((attempts.engine_seconds * workers.price_per_engine_hour)) / (3600)::double precision) AS cost,
    workers.price_currency AS currency
   FROM ((public.attempts
     JOIN public.jobs ON ((jobs.id = attempts.job_id)))
     LEFT JOIN public.workers ON ((workers.name = attempts.worker_name)))
  GROUP BY jobs.batch_id, workers.price_currency;
CREATE TABLE public.batch_faults (
    batch_id text NOT NULL,
    line bigint NOT NULL,
    custom_id text,
    code text,
    message text NOT NULL,
    param text
);
CREATE TABLE public.batch_files (
    batch_id text NOT NULL,
    run_key text,
    tenant text NOT NULL,
    queue text NOT NULL,
    endpoint text,
    input_name text NOT NULL,
    output_name text,
    num_requests bigint,
    num_faults bigint NOT NULL,
    num_completed bigint,
    num_failed bigint,
    window_seconds bigint,
    labels text NOT NULL,
    failure text,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    in_progress_at timestamp with time zone,
    finalizing_at timestamp with time zone,
    completed_at timestamp with time zone,
    failed_at timestamp with time zone,
    expired_at timestamp with time zone,
    cancelling_at timestamp with time zone,
    cancelled_at timestamp with time zone
);
CREATE TABLE public.batches (
    id text NOT NULL,
    size bigint,
    created_at timestamp with time zone NOT NULL
);
CREATE TABLE public.chunks (
    id bigint NOT NULL,
    document_id bigint NOT NULL,
    "position" bigint NOT NULL,
    start bigint NOT NULL,
    text text NOT NULL,
    num_tokens bigint NOT NULL,
    overlap_characters bigint NOT NULL,
    overlap_tokens bigint NOT NULL
);
CREATE SEQUENCE public.chunks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.chunks_id_seq OWNED BY public.chunks.id;
CREATE TABLE public.collections (
    id bigint NOT NULL,
    name text NOT NULL,
    key text NOT NULL,
    source_kind text NOT NULL,
    source text NOT NULL,
    model text NOT NULL,
    tokenizer_hash text NOT NULL,
    chunk_tokens bigint NOT NULL,
    overlap_tokens bigint NOT NULL,
    revision bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    indexed_at timestamp with time zone NOT NULL,
    source_options text
);
CREATE SEQUENCE public.collections_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.collections_id_seq OWNED BY public.collections.id;
CREATE TABLE public.documents (
    id bigint NOT NULL,
    collection_id bigint NOT NULL,
    source text NOT NULL,
    title text NOT NULL,
    format text NOT NULL,
    source_hash text,
    content_hash text,
    num_characters bigint NOT NULL,
    num_tokens bigint NOT NULL,
    problem text,
    changed_at timestamp with time zone NOT NULL,
    deleted_at timestamp with time zone
);
CREATE SEQUENCE public.documents_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.documents_id_seq OWNED BY public.documents.id;
CREATE TABLE public.hourly_failures (
    id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    state text NOT NULL,
    error_code text NOT NULL,
    jobs bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    example_message text
);
CREATE TABLE public.rolled_hours (
    hour timestamp with time zone NOT NULL,
    jobs bigint NOT NULL,
    is_final boolean NOT NULL
);
CREATE VIEW public.failures AS
 SELECT parts.error_code,
    parts.state,
    parts.queue,
    parts.model,
    parts.tenant,
    (sum(parts.jobs))::bigint AS jobs,
    min(parts.first_at) AS first_at,
    max(parts.last_at) AS last_at,
    min(parts.example_message) AS example_message
   FROM ( SELECT hourly_failures.error_code,
            hourly_failures.state,
            hourly_failures.queue,
            hourly_failures.model,
            hourly_failures.tenant,
            hourly_failures.jobs,
            hourly_failures.first_at,
            hourly_failures.last_at,
            hourly_failures.example_message
           FROM public.hourly_failures
        UNION ALL
         SELECT COALESCE(jobs.error_code, 'unknown'::text) AS "coalesce",
            jobs.state,
            jobs.queue,
            jobs.model,
            jobs.tenant,
            1,
            jobs.ended_at,
            jobs.ended_at,
            jobs.error_message
           FROM public.jobs
          WHERE (((jobs.state)::text = ANY ((ARRAY['failed'::character varying, 'dead'::character varying])::text[])) AND (jobs.ended_at >= ( SELECT COALESCE((max(rolled_hours.hour) + '01:00:00'::interval), '-infinity'::timestamp with time zone) AS "coalesce"
                   FROM public.rolled_hours)) AND (jobs.ended_at < 'infinity'::timestamp with time zone))) parts
  GROUP BY parts.error_code, parts.state, parts.queue, parts.model, parts.tenant;
CREATE TABLE public.figure_histograms (
    id bigint NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    metric text NOT NULL,
    bucket bigint NOT NULL,
    jobs bigint NOT NULL
);
CREATE SEQUENCE public.figure_histograms_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.figure_histograms_id_seq OWNED BY public.figure_histograms.id;
CREATE TABLE public.hourly_costs (
    id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    currency text,
    jobs bigint NOT NULL,
    attempts bigint NOT NULL,
    engine_seconds double precision NOT NULL,
    wasted_engine_seconds double precision NOT NULL,
    kv_block_seconds_share double precision NOT NULL,
    cost double precision
);
CREATE SEQUENCE public.hourly_costs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.hourly_costs_id_seq OWNED BY public.hourly_costs.id;
CREATE TABLE public.hourly_totals (
    id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    jobs_done bigint NOT NULL,
    jobs_failed bigint NOT NULL,
    jobs_cancelled bigint NOT NULL,
    jobs_dead bigint NOT NULL,
    jobs_with_retries bigint NOT NULL,
    attempts bigint NOT NULL,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    preemptions bigint NOT NULL,
    jobs_with_prefix_figures bigint NOT NULL,
    jobs_with_hit bigint NOT NULL,
    prefix_prompt_tokens bigint NOT NULL,
    prefix_hit_tokens bigint NOT NULL,
    kv_block_seconds double precision NOT NULL,
    kv_block_seconds_limit double precision,
    kv_block_seconds_share double precision,
    saved_against_limit_block_seconds double precision,
    saved_by_sharing_block_seconds double precision,
    first_claim_at timestamp with time zone,
    last_end_at timestamp with time zone
);
CREATE TABLE public.job_stats (
    job_id text NOT NULL,
    queue_ms double precision NOT NULL,
    tokenize_ms double precision NOT NULL,
    ttft_ms double precision,
    itl_mean_ms double precision,
    itl_p99_ms double precision,
    e2e_ms double precision NOT NULL,
    kv_blocks_peak bigint NOT NULL,
    kv_bytes_peak bigint NOT NULL,
    kv_block_seconds double precision NOT NULL,
    prefix_hit_tokens bigint NOT NULL,
    preemptions bigint NOT NULL,
    memory_peak_bytes bigint NOT NULL,
    kv_blocks_limit bigint,
    kv_block_seconds_limit double precision
);
CREATE TABLE public.results (
    job_id text NOT NULL,
    attempt_id bigint NOT NULL,
    text text NOT NULL,
    token_ids json NOT NULL,
    finish_reason text,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    logprobs json
);
CREATE VIEW public.hourly_facts AS
 SELECT hourly_totals.hour,
    hourly_totals.queue,
    hourly_totals.model,
    hourly_totals.tenant,
    hourly_totals.jobs_done,
    hourly_totals.jobs_failed,
    hourly_totals.jobs_cancelled,
    hourly_totals.jobs_dead,
    hourly_totals.jobs_with_retries,
    hourly_totals.attempts,
    hourly_totals.prompt_tokens,
    hourly_totals.completion_tokens,
    hourly_totals.preemptions,
    hourly_totals.jobs_with_prefix_figures,
    hourly_totals.jobs_with_hit,
    hourly_totals.prefix_prompt_tokens,
    hourly_totals.prefix_hit_tokens,
    hourly_totals.kv_block_seconds,
    hourly_totals.kv_block_seconds_limit,
    hourly_totals.kv_block_seconds_share,
    hourly_totals.saved_against_limit_block_seconds,
    hourly_totals.saved_by_sharing_block_seconds
   FROM public.hourly_totals
UNION ALL
 SELECT date_trunc('hour'::text, jobs.ended_at, 'UTC'::text) AS hour,
    jobs.queue,
    jobs.model,
    jobs.tenant,
    count(*) FILTER (WHERE ((jobs.state)::text = 'done'::text)) AS jobs_done,
    count(*) FILTER (WHERE ((jobs.state)::text = 'failed'::text)) AS jobs_failed,
    count(*) FILTER (WHERE ((jobs.state)::text = 'cancelled'::text)) AS jobs_cancelled,
    count(*) FILTER (WHERE ((jobs.state)::text = 'dead'::text)) AS jobs_dead,
    count(*) FILTER (WHERE (jobs.attempt_count > 1)) AS jobs_with_retries,
    (sum(jobs.attempt_count))::bigint AS attempts,
    (COALESCE(sum(results.prompt_tokens), (0)::numeric))::bigint AS prompt_tokens,
    (COALESCE(sum(results.completion_tokens), (0)::numeric))::bigint AS completion_tokens,
    (COALESCE(sum(job_stats.preemptions), (0)::numeric))::bigint AS preemptions,
    count(*) FILTER (WHERE ((results.job_id IS NOT NULL) AND (job_stats.job_id IS NOT NULL))) AS jobs_with_prefix_figures,
    count(*) FILTER (WHERE ((results.job_id IS NOT NULL) AND (job_stats.prefix_hit_tokens > 0))) AS jobs_with_hit,
    (COALESCE(sum(results.prompt_tokens) FILTER (WHERE (job_stats.job_id IS NOT NULL)), (0)::numeric))::bigint AS prefix_prompt_tokens,
    (COALESCE(sum(job_stats.prefix_hit_tokens) FILTER (WHERE (results.job_id IS NOT NULL)), (0)::numeric))::bigint AS prefix_hit_tokens,
    COALESCE(sum(job_stats.kv_block_seconds), (0.0)::double precision) AS kv_block_seconds,
    sum(job_stats.kv_block_seconds_limit) AS kv_block_seconds_limit,
    sum(latest.kv_block_seconds_share) FILTER (WHERE (job_stats.job_id IS NOT NULL)) AS kv_block_seconds_share,
    sum((job_stats.kv_block_seconds_limit - job_stats.kv_block_seconds)) AS saved_against_limit_block_seconds,
    sum((job_stats.kv_block_seconds - latest.kv_block_seconds_share)) AS saved_by_sharing_block_seconds
   FROM (((public.jobs
     LEFT JOIN public.results ON ((results.job_id = jobs.id)))
     LEFT JOIN public.job_stats ON ((job_stats.job_id = jobs.id)))
     LEFT JOIN public.attempts latest ON (((latest.job_id = jobs.id) AND (latest.epoch = jobs.epoch))))
  WHERE ((jobs.ended_at >= ( SELECT COALESCE((max(rolled_hours.hour) + '01:00:00'::interval), '-infinity'::timestamp with time zone) AS "coalesce"
           FROM public.rolled_hours)) AND (jobs.ended_at < 'infinity'::timestamp with time zone))
  GROUP BY (date_trunc('hour'::text, jobs.ended_at, 'UTC'::text)), jobs.queue, jobs.model, jobs.tenant;
CREATE SEQUENCE public.hourly_failures_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.hourly_failures_id_seq OWNED BY public.hourly_failures.id;
CREATE TABLE public.hourly_figures (
    id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    metric text NOT NULL,
    jobs bigint NOT NULL,
    total double precision NOT NULL,
    largest double precision NOT NULL
);
CREATE SEQUENCE public.hourly_figures_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.hourly_figures_id_seq OWNED BY public.hourly_figures.id;
CREATE VIEW public.hourly_throughput AS
 SELECT hourly_facts.hour,
    hourly_facts.queue,
    hourly_facts.model,
    hourly_facts.tenant,
    (((hourly_facts.jobs_done + hourly_facts.jobs_failed) + hourly_facts.jobs_cancelled) + hourly_facts.jobs_dead) AS jobs,
    hourly_facts.jobs_done,
    (hourly_facts.jobs_failed + hourly_facts.jobs_dead) AS jobs_failed,
    hourly_facts.jobs_cancelled,
    hourly_facts.prompt_tokens,
    hourly_facts.completion_tokens,
    ((hourly_facts.completion_tokens)::double precision / (3600)::double precision) AS completion_tokens_per_s
   FROM public.hourly_facts;
CREATE SEQUENCE public.hourly_totals_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.hourly_totals_id_seq OWNED BY public.hourly_totals.id;
CREATE TABLE public.hourly_waste (
    id bigint NOT NULL,
    hour timestamp with time zone NOT NULL,
    queue text NOT NULL,
    model text,
    tenant text,
    reason text NOT NULL,
    attempts bigint NOT NULL,
    wasted_tokens bigint NOT NULL,
    wasted_engine_seconds double precision NOT NULL
);
CREATE SEQUENCE public.hourly_waste_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.hourly_waste_id_seq OWNED BY public.hourly_waste.id;
CREATE VIEW public.job_costs AS
 SELECT jobs.id AS job_id,
    jobs.queue,
    jobs.model,
    jobs.tenant,
    jobs.batch_id,
    count(DISTINCT jobs.id) AS jobs,
    count(*) AS attempts,
    sum(attempts.engine_seconds) AS engine_seconds,
    sum(attempts.wasted_engine_seconds) AS wasted_engine_seconds,
    sum(attempts.kv_block_seconds_share) AS kv_block_seconds_share,
    (sum((attempts.engine_seconds * workers.price_per_engine_hour)) / (3600)::double precision) AS cost,
    workers.price_currency AS currency
   FROM ((public.attempts
     JOIN public.jobs ON ((jobs.id = attempts.job_id)))
     LEFT JOIN public.workers ON ((workers.name = attempts.worker_name)))
  GROUP BY jobs.id, jobs.queue, jobs.model, jobs.tenant, jobs.batch_id, workers.price_currency;
CREATE VIEW public.job_facts AS
 SELECT jobs.id AS job_id,
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
    job_stats.memory_peak_bytes,
    latest.kv_block_seconds_share,
    latest.worker_name,
    ( SELECT sum(attempts.engine_seconds) AS sum
           FROM public.attempts
          WHERE (attempts.job_id = jobs.id)) AS engine_seconds,
    ( SELECT sum(attempts.wasted_engine_seconds) AS sum
           FROM public.attempts
          WHERE (attempts.job_id = jobs.id)) AS wasted_engine_seconds,
    ( SELECT (sum((attempts.engine_seconds * workers.price_per_engine_hour)) / (3600)::double precision)
           FROM (public.attempts
             JOIN public.workers ON ((workers.name = attempts.worker_name)))
          WHERE (attempts.job_id = jobs.id)) AS cost
   FROM (((public.jobs
     LEFT JOIN public.results ON ((results.job_id = jobs.id)))
     LEFT JOIN public.job_stats ON ((job_stats.job_id = jobs.id)))
     LEFT JOIN public.attempts latest ON (((latest.job_id = jobs.id) AND (latest.epoch = jobs.epoch))));
CREATE VIEW public.latency_percentiles AS
 SELECT ranked.dimension,
    ranked.value,
    ranked.metric,
    count(*) AS jobs,
    avg(ranked.ms) AS mean_ms,
    min(
        CASE
            WHEN ((ranked.rank * 100) >= (ranked.size * 50)) THEN ranked.ms
            ELSE NULL::double precision
        END) AS p50_ms,
    min(
        CASE
            WHEN ((ranked.rank * 100) >= (ranked.size * 90)) THEN ranked.ms
            ELSE NULL::double precision
        END) AS p90_ms,
    min(
        CASE
            WHEN ((ranked.rank * 100) >= (ranked.size * 95)) THEN ranked.ms
            ELSE NULL::double precision
        END) AS p95_ms,
    min(
        CASE
            WHEN ((ranked.rank * 100) >= (ranked.size * 99)) THEN ranked.ms
            ELSE NULL::double precision
        END) AS p99_ms,
    max(ranked.ms) AS max_ms
   FROM ( SELECT figures.dimension,
            figures.value,
            figures.metric,
            figures.ms,
            row_number() OVER (PARTITION BY figures.dimension, figures.value, figures.metric ORDER BY figures.ms) AS rank,
            count(*) OVER (PARTITION BY figures.dimension, figures.value, figures.metric) AS size
           FROM ( SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'queue_ms'::text AS metric,
                    job_facts.queue_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.queue_ms IS NOT NULL))
                UNION ALL
                 SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'tokenize_ms'::text AS metric,
                    job_facts.tokenize_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.tokenize_ms IS NOT NULL))
                UNION ALL
                 SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'ttft_ms'::text AS metric,
                    job_facts.ttft_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.ttft_ms IS NOT NULL))
                UNION ALL
                 SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'itl_mean_ms'::text AS metric,
                    job_facts.itl_mean_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.itl_mean_ms IS NOT NULL))
                UNION ALL
                 SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'itl_p99_ms'::text AS metric,
                    job_facts.itl_p99_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.itl_p99_ms IS NOT NULL))
                UNION ALL
                 SELECT 'queue'::text AS dimension,
                    job_facts.queue AS value,
                    'e2e_ms'::text AS metric,
                    job_facts.e2e_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.queue IS NOT NULL) AND (job_facts.e2e_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'queue_ms'::text AS metric,
                    job_facts.queue_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.queue_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'tokenize_ms'::text AS metric,
                    job_facts.tokenize_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.tokenize_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'ttft_ms'::text AS metric,
                    job_facts.ttft_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.ttft_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'itl_mean_ms'::text AS metric,
                    job_facts.itl_mean_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.itl_mean_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'itl_p99_ms'::text AS metric,
                    job_facts.itl_p99_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.itl_p99_ms IS NOT NULL))
                UNION ALL
                 SELECT 'model'::text AS dimension,
                    job_facts.model AS value,
                    'e2e_ms'::text AS metric,
                    job_facts.e2e_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.model IS NOT NULL) AND (job_facts.e2e_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'queue_ms'::text AS metric,
                    job_facts.queue_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.queue_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'tokenize_ms'::text AS metric,
                    job_facts.tokenize_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.tokenize_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'ttft_ms'::text AS metric,
                    job_facts.ttft_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.ttft_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'itl_mean_ms'::text AS metric,
                    job_facts.itl_mean_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.itl_mean_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'itl_p99_ms'::text AS metric,
                    job_facts.itl_p99_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.itl_p99_ms IS NOT NULL))
                UNION ALL
                 SELECT 'tenant'::text AS dimension,
                    job_facts.tenant AS value,
                    'e2e_ms'::text AS metric,
                    job_facts.e2e_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.tenant IS NOT NULL) AND (job_facts.e2e_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'queue_ms'::text AS metric,
                    job_facts.queue_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.queue_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'tokenize_ms'::text AS metric,
                    job_facts.tokenize_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.tokenize_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'ttft_ms'::text AS metric,
                    job_facts.ttft_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.ttft_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'itl_mean_ms'::text AS metric,
                    job_facts.itl_mean_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.itl_mean_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'itl_p99_ms'::text AS metric,
                    job_facts.itl_p99_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.itl_p99_ms IS NOT NULL))
                UNION ALL
                 SELECT 'batch'::text AS dimension,
                    job_facts.batch_id AS value,
                    'e2e_ms'::text AS metric,
                    job_facts.e2e_ms AS ms
                   FROM public.job_facts
                  WHERE (((job_facts.state)::text = 'done'::text) AND (job_facts.batch_id IS NOT NULL) AND (job_facts.e2e_ms IS NOT NULL))) figures) ranked
  GROUP BY ranked.dimension, ranked.value, ranked.metric;
CREATE TABLE public.leaders (
    duty text NOT NULL,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE VIEW public.memory_use AS
 SELECT parts.queue,
    parts.model,
    parts.tenant,
    (sum(parts.jobs))::bigint AS jobs,
    (max(parts.blocks_largest))::bigint AS kv_blocks_peak_max,
    (sum(parts.blocks_total) / (sum(parts.jobs))::double precision) AS kv_blocks_peak_mean,
    (max(parts.bytes_largest))::bigint AS kv_bytes_peak_max,
    (sum(parts.bytes_total) / (sum(parts.jobs))::double precision) AS kv_bytes_peak_mean,
    (max(parts.memory_largest))::bigint AS memory_peak_bytes_max,
    sum(parts.kv_block_seconds) AS kv_block_seconds,
    sum(parts.kv_block_seconds_limit) AS kv_block_seconds_limit,
    sum(parts.kv_block_seconds_share) AS kv_block_seconds_share,
    sum(parts.saved_against_limit) AS saved_against_limit_block_seconds,
    (sum(parts.saved_against_limit) / NULLIF(sum(parts.kv_block_seconds_limit), (0)::double precision)) AS saved_against_limit_share,
    sum(parts.saved_by_sharing) AS saved_by_sharing_block_seconds,
    (sum(parts.saved_by_sharing) / NULLIF((sum(parts.kv_block_seconds_share) + sum(parts.saved_by_sharing)), (0)::double precision)) AS saved_by_sharing_share
   FROM ( SELECT hourly_figures.queue,
            hourly_figures.model,
            hourly_figures.tenant,
                CASE
                    WHEN (hourly_figures.metric = 'kv_blocks_peak'::text) THEN hourly_figures.jobs
                    ELSE (0)::bigint
                END AS jobs,
                CASE
                    WHEN (hourly_figures.metric = 'kv_blocks_peak'::text) THEN hourly_figures.largest
                    ELSE NULL::double precision
                END AS blocks_largest,
                CASE
                    WHEN (hourly_figures.metric = 'kv_blocks_peak'::text) THEN hourly_figures.total
                    ELSE NULL::double precision
                END AS blocks_total,
                CASE
                    WHEN (hourly_figures.metric = 'kv_bytes_peak'::text) THEN hourly_figures.largest
                    ELSE NULL::double precision
                END AS bytes_largest,
                CASE
                    WHEN (hourly_figures.metric = 'kv_bytes_peak'::text) THEN hourly_figures.total
                    ELSE NULL::double precision
                END AS bytes_total,
                CASE
                    WHEN (hourly_figures.metric = 'memory_peak_bytes'::text) THEN hourly_figures.largest
                    ELSE NULL::double precision
                END AS memory_largest,
            NULL::double precision AS kv_block_seconds,
            NULL::double precision AS kv_block_seconds_limit,
            NULL::double precision AS kv_block_seconds_share,
            NULL::double precision AS saved_against_limit,
            NULL::double precision AS saved_by_sharing
           FROM public.hourly_figures
          WHERE (hourly_figures.metric = ANY (ARRAY['kv_blocks_peak'::text, 'kv_bytes_peak'::text, 'memory_peak_bytes'::text]))
        UNION ALL
         SELECT hourly_facts.queue,
            hourly_facts.model,
            hourly_facts.tenant,
            0,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision,
            hourly_facts.kv_block_seconds,
            hourly_facts.kv_block_seconds_limit,
            hourly_facts.kv_block_seconds_share,
            hourly_facts.saved_against_limit_block_seconds,
            hourly_facts.saved_by_sharing_block_seconds
           FROM public.hourly_facts
        UNION ALL
         SELECT jobs.queue,
            jobs.model,
            jobs.tenant,
            1,
            job_stats.kv_blocks_peak,
            job_stats.kv_blocks_peak,
            job_stats.kv_bytes_peak,
            job_stats.kv_bytes_peak,
            job_stats.memory_peak_bytes,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision,
            NULL::double precision
           FROM (public.jobs
             JOIN public.job_stats ON ((job_stats.job_id = jobs.id)))
          WHERE ((jobs.ended_at >= ( SELECT COALESCE((max(rolled_hours.hour) + '01:00:00'::interval), '-infinity'::timestamp with time zone) AS "coalesce"
                   FROM public.rolled_hours)) AND (jobs.ended_at < 'infinity'::timestamp with time zone))) parts
  GROUP BY parts.queue, parts.model, parts.tenant
 HAVING (sum(parts.jobs) > (0)::numeric);
CREATE TABLE public.pagemill_outbox (
    id bigint NOT NULL,
    job_id text DEFAULT replace((gen_random_uuid())::text, '-'::text, ''::text) NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL,
    payload text NOT NULL,
    created_at timestamp with time zone DEFAULT CURRENT_TIMESTAMP NOT NULL,
    recorded_at timestamp with time zone
);
CREATE SEQUENCE public.pagemill_outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.pagemill_outbox_id_seq OWNED BY public.pagemill_outbox.id;
CREATE VIEW public.prefix_savings AS
 SELECT hourly_facts.queue,
    hourly_facts.model,
    hourly_facts.tenant,
    (sum(hourly_facts.jobs_with_prefix_figures))::bigint AS jobs,
    (sum(hourly_facts.jobs_with_hit))::bigint AS jobs_with_hit,
    (sum(hourly_facts.prefix_prompt_tokens))::bigint AS prompt_tokens,
    (sum(hourly_facts.prefix_hit_tokens))::bigint AS prefix_hit_tokens,
    ((sum(hourly_facts.prefix_prompt_tokens) - sum(hourly_facts.prefix_hit_tokens)))::bigint AS computed_prompt_tokens,
    ((sum(hourly_facts.prefix_hit_tokens))::double precision / NULLIF((sum(hourly_facts.prefix_prompt_tokens))::double precision, (0)::double precision)) AS hit_share
   FROM public.hourly_facts
  WHERE (hourly_facts.jobs_with_prefix_figures > 0)
  GROUP BY hourly_facts.queue, hourly_facts.model, hourly_facts.tenant;
CREATE TABLE public.schedule_runs (
    id text NOT NULL,
    schedule_id text NOT NULL,
    kind character varying(16) NOT NULL,
    slot_at timestamp with time zone NOT NULL,
    last_slot_at timestamp with time zone NOT NULL,
    num_slots bigint NOT NULL,
    state character varying(16) NOT NULL,
    skip_reason character varying(16),
    message text,
    batch_id text,
    source_digest text,
    num_jobs bigint,
    num_submitted bigint NOT NULL,
    epoch bigint NOT NULL,
    num_failures bigint NOT NULL,
    retry_at timestamp with time zone,
    claimed_by text,
    claimed_until timestamp with time zone,
    opened_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT ck_schedule_runs_kind CHECK (((kind)::text = ANY ((ARRAY['slot'::character varying, 'manual'::character varying])::text[]))),
    CONSTRAINT ck_schedule_runs_skip_reason CHECK (((skip_reason)::text = ANY ((ARRAY['missed'::character varying, 'overlap'::character varying, 'paused'::character varying])::text[]))),
    CONSTRAINT ck_schedule_runs_state CHECK (((state)::text = ANY ((ARRAY['firing'::character varying, 'submitted'::character varying, 'skipped'::character varying, 'failed'::character varying])::text[])))
);
CREATE TABLE public.schedules (
    id text NOT NULL,
    name text NOT NULL,
    expression text NOT NULL,
    time_zone text NOT NULL,
    action text NOT NULL,
    queue text NOT NULL,
    tenant text NOT NULL,
    missed character varying(16) NOT NULL,
    overlap character varying(16) NOT NULL,
    grace_seconds double precision NOT NULL,
    starts_at timestamp with time zone,
    ends_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    paused_at timestamp with time zone,
    removed_at timestamp with time zone,
    next_slot_at timestamp with time zone,
    CONSTRAINT ck_schedules_missed CHECK (((missed)::text = ANY ((ARRAY['once'::character varying, 'skip'::character varying])::text[]))),
    CONSTRAINT ck_schedules_overlap CHECK (((overlap)::text = ANY ((ARRAY['skip'::character varying, 'allow'::character varying])::text[])))
);
CREATE VIEW public.schedule_history AS
 SELECT schedules.name AS schedule,
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
    ( SELECT count(*) AS count
           FROM public.jobs
          WHERE ((jobs.batch_id = schedule_runs.batch_id) AND ((jobs.state)::text = 'done'::text))) AS jobs_done,
    ( SELECT count(*) AS count
           FROM public.jobs
          WHERE ((jobs.batch_id = schedule_runs.batch_id) AND ((jobs.state)::text = ANY ((ARRAY['failed'::character varying, 'dead'::character varying])::text[])))) AS jobs_failed,
    ( SELECT max(jobs.ended_at) AS max
           FROM public.jobs
          WHERE (jobs.batch_id = schedule_runs.batch_id)) AS last_job_ended_at
   FROM (public.schedule_runs
     JOIN public.schedules ON ((schedules.id = schedule_runs.schedule_id)));
CREATE TABLE public.summaries (
    id bigint NOT NULL,
    document_id bigint NOT NULL,
    content_hash text NOT NULL,
    prompt_hash text NOT NULL,
    model_hash text NOT NULL,
    prompt text NOT NULL,
    model text NOT NULL,
    state character varying(16) NOT NULL,
    attempt_count bigint NOT NULL,
    batch_id text NOT NULL,
    job_id text NOT NULL,
    num_jobs bigint NOT NULL,
    text text,
    completion_tokens bigint,
    finish_reason text,
    error_message text,
    created_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT ck_summaries_state CHECK (((state)::text = ANY ((ARRAY['pending'::character varying, 'done'::character varying, 'failed'::character varying])::text[])))
);
CREATE SEQUENCE public.summaries_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.summaries_id_seq OWNED BY public.summaries.id;
CREATE TABLE public.summary_jobs (
    job_id text NOT NULL,
    summary_id bigint NOT NULL,
    level bigint NOT NULL,
    "position" bigint NOT NULL
);
CREATE VIEW public.tenant_costs AS
 SELECT parts.tenant,
    (sum(parts.jobs))::bigint AS jobs,
    (sum(parts.attempts))::bigint AS attempts,
    sum(parts.engine_seconds) AS engine_seconds,
    sum(parts.wasted_engine_seconds) AS wasted_engine_seconds,
    sum(parts.kv_block_seconds_share) AS kv_block_seconds_share,
    sum(parts.cost) AS cost,
    parts.currency
   FROM ( SELECT hourly_costs.tenant,
            hourly_costs.currency,
            hourly_costs.jobs,
            hourly_costs.attempts,
            hourly_costs.engine_seconds,
            hourly_costs.wasted_engine_seconds,
            hourly_costs.kv_block_seconds_share,
            hourly_costs.cost
           FROM public.hourly_costs
        UNION ALL
         SELECT jobs.tenant,
            workers.price_currency,
                CASE
                    WHEN (attempts.epoch = jobs.epoch) THEN 1
                    ELSE 0
                END AS "case",
            1,
            COALESCE(attempts.engine_seconds, (0.0)::double precision) AS "coalesce",
            COALESCE(attempts.wasted_engine_seconds, (0.0)::double precision) AS "coalesce",
            COALESCE(attempts.kv_block_seconds_share, (0.0)::double precision) AS "coalesce",
            ((attempts.engine_seconds * workers.price_per_engine_hour) / (3600)::double precision)
           FROM ((public.jobs
             JOIN public.attempts ON ((attempts.job_id = jobs.id)))
             LEFT JOIN public.workers ON ((workers.name = attempts.worker_name)))
          WHERE ((jobs.ended_at >= ( SELECT COALESCE((max(rolled_hours.hour) + '01:00:00'::interval), '-infinity'::timestamp with time zone) AS "coalesce"
                   FROM public.rolled_hours)) AND (jobs.ended_at < 'infinity'::timestamp with time zone))) parts
  GROUP BY parts.tenant, parts.currency;
CREATE VIEW public.wasted_tokens AS
 SELECT parts.reason,
    parts.queue,
    parts.model,
    parts.tenant,
    (sum(parts.attempts))::bigint AS attempts,
    (sum(parts.wasted_tokens))::bigint AS wasted_tokens,
    sum(parts.wasted_engine_seconds) AS wasted_engine_seconds
   FROM ( SELECT hourly_waste.reason,
            hourly_waste.queue,
            hourly_waste.model,
            hourly_waste.tenant,
            hourly_waste.attempts,
            hourly_waste.wasted_tokens,
            hourly_waste.wasted_engine_seconds
           FROM public.hourly_waste
        UNION ALL
         SELECT ended.reason,
            ended.queue,
            ended.model,
            ended.tenant,
            1,
            COALESCE(
                CASE
                    WHEN (ended.reason = 'recomputed'::text) THEN ended.recomputed_tokens
                    ELSE ended.computed_tokens
                END, (0)::bigint) AS "coalesce",
            COALESCE(
                CASE
                    WHEN (ended.reason = 'recomputed'::text) THEN ended.wasted_engine_seconds
                    ELSE ended.engine_seconds
                END, (0.0)::double precision) AS "coalesce"
           FROM ( SELECT
                        CASE
                            WHEN (attempts.error_code = 'fenced'::text) THEN 'fenced'::text
                            WHEN ((attempts.state)::text = 'lost'::text) THEN 'lost'::text
                            WHEN ((attempts.state)::text = 'requeued'::text) THEN 'handed_back'::text
                            WHEN (((attempts.state)::text = 'failed'::text) AND (attempts.epoch <> jobs.epoch)) THEN 'retried'::text
                            ELSE 'recomputed'::text
                        END AS reason,
                    jobs.queue,
                    jobs.model,
                    jobs.tenant,
                    attempts.computed_tokens,
                    attempts.recomputed_tokens,
                    attempts.engine_seconds,
                    attempts.wasted_engine_seconds
                   FROM (public.jobs
                     JOIN public.attempts ON ((attempts.job_id = jobs.id)))
                  WHERE (((attempts.state)::text <> 'running'::text) AND (jobs.ended_at >= ( SELECT COALESCE((max(rolled_hours.hour) + '01:00:00'::interval), '-infinity'::timestamp with time zone) AS "coalesce"
                           FROM public.rolled_hours)) AND (jobs.ended_at < 'infinity'::timestamp with time zone))) ended
          WHERE ((ended.reason <> 'recomputed'::text) OR (ended.recomputed_tokens > 0) OR (ended.wasted_engine_seconds > (0)::double precision))) parts
  GROUP BY parts.reason, parts.queue, parts.model, parts.tenant;
CREATE TABLE public.worker_hours (
    worker_name text NOT NULL,
    hour timestamp with time zone NOT NULL,
    wall_seconds double precision NOT NULL,
    engine_seconds double precision NOT NULL,
    wasted_engine_seconds double precision NOT NULL,
    idle_seconds double precision NOT NULL,
    loading_seconds double precision NOT NULL,
    overhead_seconds double precision NOT NULL,
    kv_block_seconds_held double precision NOT NULL,
    kv_block_seconds_cached double precision NOT NULL,
    kv_block_seconds_free double precision NOT NULL,
    computed_tokens bigint NOT NULL,
    recomputed_tokens bigint NOT NULL
);
CREATE VIEW public.worker_costs AS
 SELECT worker_hours.worker_name,
    worker_hours.hour,
    workers.model,
    worker_hours.wall_seconds,
    worker_hours.engine_seconds,
    worker_hours.wasted_engine_seconds,
    worker_hours.idle_seconds,
    worker_hours.loading_seconds,
    worker_hours.overhead_seconds,
    ((worker_hours.wall_seconds * workers.price_per_engine_hour) / (3600)::double precision) AS cost,
    ((worker_hours.engine_seconds * workers.price_per_engine_hour) / (3600)::double precision) AS engine_cost,
    ((worker_hours.idle_seconds * workers.price_per_engine_hour) / (3600)::double precision) AS idle_cost,
    workers.price_currency AS currency
   FROM (public.worker_hours
     JOIN public.workers ON ((workers.name = worker_hours.worker_name)));
ALTER TABLE ONLY public.attempts ALTER COLUMN id SET DEFAULT nextval('public.attempts_id_seq'::regclass);
ALTER TABLE ONLY public.chunks ALTER COLUMN id SET DEFAULT nextval('public.chunks_id_seq'::regclass);
ALTER TABLE ONLY public.collections ALTER COLUMN id SET DEFAULT nextval('public.collections_id_seq'::regclass);
ALTER TABLE ONLY public.documents ALTER COLUMN id SET DEFAULT nextval('public.documents_id_seq'::regclass);
ALTER TABLE ONLY public.figure_histograms ALTER COLUMN id SET DEFAULT nextval('public.figure_histograms_id_seq'::regclass);
ALTER TABLE ONLY public.hourly_costs ALTER COLUMN id SET DEFAULT nextval('public.hourly_costs_id_seq'::regclass);
ALTER TABLE ONLY public.hourly_failures ALTER COLUMN id SET DEFAULT nextval('public.hourly_failures_id_seq'::regclass);
ALTER TABLE ONLY public.hourly_figures ALTER COLUMN id SET DEFAULT nextval('public.hourly_figures_id_seq'::regclass);
ALTER TABLE ONLY public.hourly_totals ALTER COLUMN id SET DEFAULT nextval('public.hourly_totals_id_seq'::regclass);
ALTER TABLE ONLY public.hourly_waste ALTER COLUMN id SET DEFAULT nextval('public.hourly_waste_id_seq'::regclass);
ALTER TABLE ONLY public.pagemill_outbox ALTER COLUMN id SET DEFAULT nextval('public.pagemill_outbox_id_seq'::regclass);
ALTER TABLE ONLY public.summaries ALTER COLUMN id SET DEFAULT nextval('public.summaries_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0013');
INSERT INTO public.api_files VALUES ('file-000000000000000000000001', 'acme', 'ü.jsonl', 'batch', 17, '2026-03-01 12:00:00.25+00', '2026-03-02 12:00:00.25+00');
INSERT INTO public.api_keys VALUES ('key_aa3234a6ce1b', 'acme', 'old', 'bcf4d3540c6117c5e412b7028eda23f7c1586656e63e228b5c279b19422441bb', '2026-03-01 12:00:05.25+00', '2026-03-01 12:00:05.25+00');
INSERT INTO public.api_keys VALUES ('key_a9e6908d8a31', 'acme', NULL, 'e34d5e26fbdc3167c94b96c5f844002548e8cde310783095d8cf9bc80c688712', '2026-03-01 12:00:05.25+00', NULL);
INSERT INTO public.attempts VALUES (8, 'running', 1777622400000000, 'w-stopped', 'running', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (1, 'cancelled', 1777622400000000, 'w-stopped', 'cancelled', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'cancelled_code', 'it was cancelled', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (2, 'delayed', 1777622400000000, 'w-stopped', 'failed', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'failed_code', 'it was failed', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (3, 'done', 1777622400000000, 'w-stopped', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (4, 'failed', 1777622400000000, 'w-stopped', 'failed', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'context_length', '5000 > 4096', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (5, 'handed-back', 1777622400000000, 'w-stopped', 'requeued', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (7, 'odd', 1777622400000000, 'w-stopped', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (6, 'lost-once', 1777622400000000, 'w-stopped', 'lost', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'fenced', 'ended done after the job had gone on without it', 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (9, 'lost-once', 1777622400000009, 'w-running', 'done', '2026-03-01 12:01:00.25+00', '2026-03-01 12:01:10.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (10, 'with-figures', 1777622400000100, 'w-running', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 1.5, 0.25, 2.5, 43, 3, 2, 3, 80, 110, 112);
INSERT INTO public.attempts VALUES (12, 'batch_00000000000000000000f11e-000000003', 1777622400000101, 'w-running', 'running', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (11, 'batch_00000000000000000000f11e-000000001', 1777622400000101, 'w-running', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (13, 'summary-job', 1777622400000102, 'w-running', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.batch_faults VALUES ('batch_00000000000000000000f11e', 2, NULL, 'invalid_json', 'is no JSON', 'body');
INSERT INTO public.batch_files VALUES ('batch_00000000000000000000f11e', 'digest', 'acme', 'bulk', '/v1/chat/completions', 'in.jsonl', NULL, 3, 1, NULL, NULL, 86400, '{"\u00fc": "\u00e9"}', NULL, '2026-03-01 12:00:00.25+00', NULL, '2026-03-01 12:01:40.25+00', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.batches VALUES ('night', 3, '2026-03-01 12:00:00.25+00');
INSERT INTO public.batches VALUES ('batch_00000000000000000000f11e', NULL, '2026-03-01 12:00:00.25+00');
INSERT INTO public.batches VALUES ('summaries', NULL, '2026-03-01 12:00:00.25+00');
INSERT INTO public.chunks VALUES (1, 1, 0, 0, 'Ä text', 2, 0, 0);
INSERT INTO public.collections VALUES (1, 'library', 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk', 'folder', '/srv/library', 'm', 'tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt', 384, 48, 1, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:00.25+00', '{"pattern": "*.md"}');
INSERT INTO public.documents VALUES (1, 1, 'a.md', 'Ä', 'md', 'ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss', 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 5, 2, NULL, '2026-03-01 12:00:00.25+00', NULL);
INSERT INTO public.documents VALUES (2, 1, 'b.pdf', 'Ä', 'pdf', 'ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss', NULL, 5, 2, 'is encrypted', '2026-03-01 12:00:00.25+00', NULL);
INSERT INTO public.figure_histograms VALUES (1, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'memory_peak_bytes', 1129, 4);
INSERT INTO public.figure_histograms VALUES (2, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_block_seconds', 62, 2);
INSERT INTO public.figure_histograms VALUES (3, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'itl_mean_ms', 126, 4);
INSERT INTO public.figure_histograms VALUES (4, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'e2e_ms', 465, 2);
INSERT INTO public.figure_histograms VALUES (5, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'e2e_ms', 465, 4);
INSERT INTO public.figure_histograms VALUES (6, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'queue_ms', 460, 2);
INSERT INTO public.figure_histograms VALUES (7, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'tokenize_ms', 20, 4);
INSERT INTO public.figure_histograms VALUES (8, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_bytes_peak', 790, 4);
INSERT INTO public.figure_histograms VALUES (9, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'ttft_ms', 219, 1);
INSERT INTO public.figure_histograms VALUES (10, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_block_seconds', 62, 4);
INSERT INTO public.figure_histograms VALUES (11, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'itl_mean_ms', 126, 1);
INSERT INTO public.figure_histograms VALUES (12, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'itl_p99_ms', 149, 1);
INSERT INTO public.figure_histograms VALUES (13, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'queue_ms', 460, 4);
INSERT INTO public.figure_histograms VALUES (14, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_bytes_peak', 790, 2);
INSERT INTO public.figure_histograms VALUES (15, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'itl_p99_ms', 149, 4);
INSERT INTO public.figure_histograms VALUES (16, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'tokenize_ms', 20, 2);
INSERT INTO public.figure_histograms VALUES (17, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'ttft_ms', 219, 4);
INSERT INTO public.figure_histograms VALUES (18, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'memory_peak_bytes', 1129, 2);
INSERT INTO public.figure_histograms VALUES (19, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_blocks_peak', 97, 2);
INSERT INTO public.figure_histograms VALUES (20, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_blocks_peak', 97, 4);
INSERT INTO public.hourly_costs VALUES (1, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', NULL, 2, 2, 1.5, 0.25, 2.5, NULL);
INSERT INTO public.hourly_costs VALUES (2, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', NULL, 5, 6, 0, 0, 0, NULL);
INSERT INTO public.hourly_failures VALUES (1, '2026-03-01 12:00:00+00', 'default', NULL, NULL, 'dead', 'unknown_function', 2, '2026-03-01 12:08:20.25+00', '2026-03-01 12:08:20.25+00', 'the record names os.system');
INSERT INTO public.hourly_figures VALUES (1, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'itl_p99_ms', 4, 80, 20);
INSERT INTO public.hourly_figures VALUES (2, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_bytes_peak', 2, 14680064, 7340032);
INSERT INTO public.hourly_figures VALUES (3, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'itl_mean_ms', 4, 50, 12.5);
INSERT INTO public.hourly_figures VALUES (4, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'tokenize_ms', 4, 6, 1.5);
INSERT INTO public.hourly_figures VALUES (5, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'itl_mean_ms', 1, 12.5, 12.5);
INSERT INTO public.hourly_figures VALUES (6, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_blocks_peak', 4, 28, 7);
INSERT INTO public.hourly_figures VALUES (7, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'e2e_ms', 4, 44000, 11000);
INSERT INTO public.hourly_figures VALUES (8, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'queue_ms', 2, 20000, 10000);
INSERT INTO public.hourly_figures VALUES (9, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'memory_peak_bytes', 2, 12884901888, 6442450944);
INSERT INTO public.hourly_figures VALUES (10, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'ttft_ms', 4, 321, 80.25);
INSERT INTO public.hourly_figures VALUES (11, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_block_seconds', 4, 14, 3.5);
INSERT INTO public.hourly_figures VALUES (12, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_blocks_peak', 2, 14, 7);
INSERT INTO public.hourly_figures VALUES (13, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'ttft_ms', 1, 80.25, 80.25);
INSERT INTO public.hourly_figures VALUES (14, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'queue_ms', 4, 40000, 10000);
INSERT INTO public.hourly_figures VALUES (15, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'itl_p99_ms', 1, 20, 20);
INSERT INTO public.hourly_figures VALUES (16, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'memory_peak_bytes', 4, 25769803776, 6442450944);
INSERT INTO public.hourly_figures VALUES (17, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'kv_block_seconds', 2, 7, 3.5);
INSERT INTO public.hourly_figures VALUES (18, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'e2e_ms', 2, 22000, 11000);
INSERT INTO public.hourly_figures VALUES (19, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'tokenize_ms', 2, 3, 1.5);
INSERT INTO public.hourly_figures VALUES (20, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'kv_bytes_peak', 4, 29360128, 7340032);
INSERT INTO public.hourly_totals VALUES (1, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 2, 0, 0, 0, 0, 2, 80, 6, 2, 2, 2, 80, 32, 7, 9.5, 2.5, 6, 4.5, '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00');
INSERT INTO public.hourly_totals VALUES (2, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 4, 0, 1, 0, 1, 6, 200, 12, 0, 4, 4, 160, 64, 14, NULL, 0, NULL, 14, '2026-03-01 12:00:10.25+00', '2026-03-01 12:01:10.25+00');
INSERT INTO public.hourly_totals VALUES (3, '2026-03-01 12:00:00+00', 'default', NULL, 'default', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.hourly_totals VALUES (4, '2026-03-01 12:00:00+00', 'default', NULL, NULL, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.hourly_waste VALUES (1, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'acme', 'recomputed', 1, 3, 0.25);
INSERT INTO public.hourly_waste VALUES (2, '2026-03-01 12:00:00+00', 'default', 'smollm2', 'default', 'fenced', 1, 0, 0);
INSERT INTO public.job_stats VALUES ('done', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944, NULL, NULL);
INSERT INTO public.job_stats VALUES ('odd', 10000, 1.5, NULL, NULL, NULL, 11000, 7, 7340032, 3.5, 16, 2, 6442450944, NULL, NULL);
INSERT INTO public.job_stats VALUES ('lost-once', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944, NULL, NULL);
INSERT INTO public.job_stats VALUES ('with-figures', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944, 20, 9.5);
INSERT INTO public.job_stats VALUES ('batch_00000000000000000000f11e-000000001', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944, NULL, NULL);
INSERT INTO public.job_stats VALUES ('summary-job', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944, NULL, NULL);
INSERT INTO public.jobs VALUES ('queued', 'bulk', 'default', NULL, 'night', 'row 7', '{"prompt": "later", "custom_id": "row 7", "batch_id": "night", "batch_size": 3}', 'queued', 0, 0, NULL, NULL, '2026-03-01 12:00:00.25+00', NULL, NULL, NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('queued-with-deadline', 'bulk', 'acme', NULL, NULL, NULL, '{"prompt": "soon", "deadline": "2026-03-01T13:00:00.250000+00:00", "tenant": "acme"}', 'queued', 0, 0, NULL, NULL, '2026-03-01 12:00:00.25+00', NULL, NULL, NULL, '2026-03-01 13:00:00.25+00', NULL, 0);
INSERT INTO public.jobs VALUES ('running', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is running?","max_tokens":9,"deadline":"2026-03-01T14:00:00.250000Z"}', 'running', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL, NULL, '2026-03-01 14:00:00.25+00', NULL, 0);
INSERT INTO public.jobs VALUES ('cancelled', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is cancelled?"}', 'cancelled', 1777622400000000, 1, 'cancelled_code', 'it was cancelled', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('delayed', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is delayed?"}', 'queued', 1777622400000000, 1, 'failed_code', 'it was failed', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, '2026-03-01 12:15:00.25+00', 1);
INSERT INTO public.jobs VALUES ('done', 'default', 'default', 'smollm2', 'night', NULL, '{"prompt":"What is done?","system":"Be brief.","batch_id":"night","batch_size":3,"metadata":{"page":"1"}}', 'done', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('handed-back', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is handed-back?"}', 'queued', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('odd', 'default', 'acme', 'smollm2', NULL, 'ü/1', '{"prompt":"日本語 🎌","model":"smollm2","tenant":"acme","custom_id":"ü/1"}', 'done', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('lost-once', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is lost-once?"}', 'done', 1777622400000009, 2, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:01:10.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('dead', 'default', NULL, NULL, NULL, NULL, '{"func": "os.system \u0000"}', 'dead', 0, 0, 'unknown_function', 'the record names os.system', NULL, NULL, '2026-03-01 12:08:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('dead-late', 'default', NULL, NULL, NULL, NULL, '{"func": "os.system"}', 'dead', 0, 0, 'unknown_function', 'the record names os.system', '2026-03-01 12:00:00.25+00', NULL, '2026-03-01 12:08:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('cancelled-early', 'default', 'default', NULL, NULL, NULL, '{"prompt":"What is cancelled-early?"}', 'cancelled', 0, 0, NULL, NULL, '2026-03-01 12:00:00.25+00', NULL, '2026-03-01 12:08:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('failed', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is failed?"}', 'queued', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('with-figures', 'default', 'acme', 'smollm2', NULL, NULL, '{"prompt":"What is with-figures?","tenant":"acme","logprobs":true}', 'done', 1777622400000100, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('batch_00000000000000000000f11e-000000003', 'default', 'default', 'smollm2', 'batch_00000000000000000000f11e', 'c3', '{"prompt":"What is batch_00000000000000000000f11e-000000003?","batch_id":"batch_00000000000000000000f11e","custom_id":"c3"}', 'running', 1777622400000101, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('batch_00000000000000000000f11e-000000001', 'default', 'default', 'smollm2', 'batch_00000000000000000000f11e', 'c1', '{"prompt":"What is batch_00000000000000000000f11e-000000001?","batch_id":"batch_00000000000000000000f11e","custom_id":"c1"}', 'done', 1777622400000101, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('summary-job', 'default', 'default', 'smollm2', 'summaries', NULL, '{"prompt":"What is summary-job?","batch_id":"summaries"}', 'done', 1777622400000102, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL, NULL, 0);
INSERT INTO public.jobs VALUES ('outbox-1', 'bulk', 'default', NULL, NULL, NULL, '{"schema_version": 1, "prompt": "from an app"}', 'queued', 0, 0, NULL, NULL, '2026-03-01 12:00:30.25+00', NULL, NULL, NULL, NULL, NULL, 0);
INSERT INTO public.leaders VALUES ('schedules', 'w-running', 1, '2026-03-01 12:02:10.25+00');
INSERT INTO public.pagemill_outbox VALUES (2, 'outbox-2', 'bulk', '{"prompt": "from an app"}', '2026-03-01 12:00:00.25+00', NULL);
INSERT INTO public.pagemill_outbox VALUES (1, 'outbox-1', 'bulk', '{"prompt": "from an app"}', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:30.25+00');
INSERT INTO public.results VALUES ('cancelled', 1, 'half an', '[]', 'cancelled', 40, 0, '2026-03-01 12:00:20.25+00', NULL);
INSERT INTO public.results VALUES ('done', 3, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:00:20.25+00', NULL);
INSERT INTO public.results VALUES ('odd', 7, 'Zürich 東京 👩‍🚀 <b> ''; DROP TABLE jobs; -- =cmd() [31m NUL � and half a pair �', '[0, 2147483647]', 'stop_string', 40, 3, '2026-03-01 12:00:20.25+00', NULL);
INSERT INTO public.results VALUES ('lost-once', 9, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:01:10.25+00', NULL);
INSERT INTO public.results VALUES ('with-figures', 10, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:00:20.25+00', '[{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.25]]}]');
INSERT INTO public.results VALUES ('batch_00000000000000000000f11e-000000001', 11, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:00:20.25+00', NULL);
INSERT INTO public.results VALUES ('summary-job', 13, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:00:20.25+00', NULL);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 00:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 01:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 02:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 03:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 04:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 05:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 06:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 07:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 08:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 09:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 10:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 11:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 12:00:00+00', 10, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 13:00:00+00', 0, false);
INSERT INTO public.rolled_hours VALUES ('2026-03-01 14:00:00+00', 0, false);
INSERT INTO public.schedule_runs VALUES ('4818c6e3c6b65ad1bc4a1ca5aa6ab149', 'id-nightly', 'slot', '2026-03-01 12:01:00+00', '2026-03-01 12:01:00+00', 1, 'submitted', NULL, NULL, 'nightly.20260301T1201Z', NULL, 1, 1, 1, 0, NULL, 'w-running', NULL, '2026-03-01 12:01:00.25+00', '2026-03-01 12:01:00.25+00');
INSERT INTO public.schedule_runs VALUES ('53a0b74581989996dc532cc10b4dc046', 'id-nightly', 'slot', '2026-03-01 12:02:00+00', '2026-03-01 12:02:00+00', 1, 'firing', NULL, 'Redis does not answer', 'nightly.20260301T1202Z', NULL, 1, 0, 1, 1, '2026-03-01 12:02:01.25+00', 'w-running', NULL, '2026-03-01 12:02:00.25+00', NULL);
INSERT INTO public.schedule_runs VALUES ('392bf9ccbf8d23464d4fa8eedb637f4a', 'id-nightly', 'slot', '2026-03-01 12:03:00+00', '2026-03-01 12:10:00+00', 8, 'skipped', 'paused', 'the schedule was paused', NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, '2026-03-01 12:10:00.25+00', '2026-03-01 12:10:00.25+00');
INSERT INTO public.schedules VALUES ('id-nightly', 'nightly', '* * * * *', 'UTC', '{"kind":"prompt","job":{"prompt":"Good night."}}', 'default', 'default', 'once', 'allow', 300, NULL, NULL, '2026-03-01 12:00:30+00', NULL, NULL, '2026-03-01 12:11:00+00');
INSERT INTO public.summaries VALUES (2, 1, 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 'p2', 'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm', '{}', 'smollm2', 'pending', 1, 'summaries', 'queued', 1, NULL, NULL, NULL, NULL, '2026-03-01 12:00:00.25+00', NULL);
INSERT INTO public.summaries VALUES (1, 1, 'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc', 'p1', 'mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm', '{}', 'smollm2', 'done', 1, 'summaries', 'summary-job', 1, 'It is what it is.', 3, 'stop', NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:50.25+00');
INSERT INTO public.summary_jobs VALUES ('summary-job', 1, 0, 0);
INSERT INTO public.summary_jobs VALUES ('queued', 2, 0, 0);
INSERT INTO public.worker_hours VALUES ('w-running', '2026-03-01 12:00:00+00', 60, 20, 1, 30, 5, 5, 7, 8, 9, 500, 3);
INSERT INTO public.workers VALUES ('w-running', 'host', 4711, 'smollm2', 'cpu', 'float32', 16, 2048, 368640, '0.1.0', '2.11.0', '5.24.0', '2026-03-01 12:00:05.25+00', '2026-03-01 12:08:20.25+00', NULL, 3, 2, 400, 50, 160, '2026-03-01 12:08:19.75+00', NULL, NULL);
INSERT INTO public.workers VALUES ('w-stopped', 'host', 4711, 'smollm2', 'cpu', 'float32', 16, 2048, 368640, '0.1.0', '2.11.0', '5.24.0', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:00.25+00', '2026-03-01 12:08:20.25+00', 0, 0, 0, 0, 0, NULL, NULL, NULL);
SELECT pg_catalog.setval('public.attempts_id_seq', 13, true);
SELECT pg_catalog.setval('public.chunks_id_seq', 1, true);
SELECT pg_catalog.setval('public.collections_id_seq', 1, true);
SELECT pg_catalog.setval('public.documents_id_seq', 2, true);
SELECT pg_catalog.setval('public.figure_histograms_id_seq', 20, true);
SELECT pg_catalog.setval('public.hourly_costs_id_seq', 2, true);
SELECT pg_catalog.setval('public.hourly_failures_id_seq', 1, true);
SELECT pg_catalog.setval('public.hourly_figures_id_seq', 20, true);
SELECT pg_catalog.setval('public.hourly_totals_id_seq', 4, true);
SELECT pg_catalog.setval('public.hourly_waste_id_seq', 2, true);
SELECT pg_catalog.setval('public.pagemill_outbox_id_seq', 2, true);
SELECT pg_catalog.setval('public.summaries_id_seq', 2, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.api_files
    ADD CONSTRAINT pk_api_files PRIMARY KEY (id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.batch_faults
    ADD CONSTRAINT pk_batch_faults PRIMARY KEY (batch_id, line);
ALTER TABLE ONLY public.batch_files
    ADD CONSTRAINT pk_batch_files PRIMARY KEY (batch_id);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT pk_batches PRIMARY KEY (id);
ALTER TABLE ONLY public.chunks
    ADD CONSTRAINT pk_chunks PRIMARY KEY (id);
ALTER TABLE ONLY public.collections
    ADD CONSTRAINT pk_collections PRIMARY KEY (id);
ALTER TABLE ONLY public.documents
    ADD CONSTRAINT pk_documents PRIMARY KEY (id);
ALTER TABLE ONLY public.figure_histograms
    ADD CONSTRAINT pk_figure_histograms PRIMARY KEY (id);
ALTER TABLE ONLY public.hourly_costs
    ADD CONSTRAINT pk_hourly_costs PRIMARY KEY (id);
ALTER TABLE ONLY public.hourly_failures
    ADD CONSTRAINT pk_hourly_failures PRIMARY KEY (id);
ALTER TABLE ONLY public.hourly_figures
    ADD CONSTRAINT pk_hourly_figures PRIMARY KEY (id);
ALTER TABLE ONLY public.hourly_totals
    ADD CONSTRAINT pk_hourly_totals PRIMARY KEY (id);
ALTER TABLE ONLY public.hourly_waste
    ADD CONSTRAINT pk_hourly_waste PRIMARY KEY (id);
ALTER TABLE ONLY public.job_stats
    ADD CONSTRAINT pk_job_stats PRIMARY KEY (job_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.leaders
    ADD CONSTRAINT pk_leaders PRIMARY KEY (duty);
ALTER TABLE ONLY public.pagemill_outbox
    ADD CONSTRAINT pk_pagemill_outbox PRIMARY KEY (id);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT pk_results PRIMARY KEY (job_id);
ALTER TABLE ONLY public.rolled_hours
    ADD CONSTRAINT pk_rolled_hours PRIMARY KEY (hour);
ALTER TABLE ONLY public.schedule_runs
    ADD CONSTRAINT pk_schedule_runs PRIMARY KEY (id);
ALTER TABLE ONLY public.schedules
    ADD CONSTRAINT pk_schedules PRIMARY KEY (id);
ALTER TABLE ONLY public.summaries
    ADD CONSTRAINT pk_summaries PRIMARY KEY (id);
ALTER TABLE ONLY public.summary_jobs
    ADD CONSTRAINT pk_summary_jobs PRIMARY KEY (job_id);
ALTER TABLE ONLY public.worker_hours
    ADD CONSTRAINT pk_worker_hours PRIMARY KEY (worker_name, hour);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT pk_workers PRIMARY KEY (name);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_key_hash UNIQUE (key_hash);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_id_epoch UNIQUE (job_id, epoch);
ALTER TABLE ONLY public.batch_files
    ADD CONSTRAINT uq_batch_files_run_key UNIQUE (run_key);
ALTER TABLE ONLY public.chunks
    ADD CONSTRAINT uq_chunks_document_id_position UNIQUE (document_id, "position");
ALTER TABLE ONLY public.collections
    ADD CONSTRAINT uq_collections_key UNIQUE (key);
ALTER TABLE ONLY public.collections
    ADD CONSTRAINT uq_collections_name UNIQUE (name);
ALTER TABLE ONLY public.documents
    ADD CONSTRAINT uq_documents_collection_id_source UNIQUE (collection_id, source);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT uq_results_attempt_id UNIQUE (attempt_id);
ALTER TABLE ONLY public.schedule_runs
    ADD CONSTRAINT uq_schedule_runs_schedule_id_kind_slot_at UNIQUE (schedule_id, kind, slot_at);
ALTER TABLE ONLY public.summaries
    ADD CONSTRAINT uq_summaries_document_id_content_hash_prompt_hash_model_hash UNIQUE (document_id, content_hash, prompt_hash, model_hash);
CREATE INDEX ix_api_files_tenant_created_at ON public.api_files USING btree (tenant, created_at);
CREATE INDEX ix_batch_files_tenant_created_at ON public.batch_files USING btree (tenant, created_at);
CREATE INDEX ix_figure_histograms_starts_at_metric ON public.figure_histograms USING btree (starts_at, metric);
CREATE INDEX ix_hourly_costs_hour ON public.hourly_costs USING btree (hour);
CREATE INDEX ix_hourly_failures_hour ON public.hourly_failures USING btree (hour);
CREATE INDEX ix_hourly_figures_hour ON public.hourly_figures USING btree (hour);
CREATE INDEX ix_hourly_totals_hour ON public.hourly_totals USING btree (hour);
CREATE INDEX ix_hourly_waste_hour ON public.hourly_waste USING btree (hour);
CREATE INDEX ix_job_stats_e2e_ms ON public.job_stats USING btree (e2e_ms);
CREATE INDEX ix_jobs_batch_id ON public.jobs USING btree (batch_id);
CREATE INDEX ix_jobs_ended_at ON public.jobs USING btree (ended_at);
CREATE INDEX ix_jobs_enqueued_at_id ON public.jobs USING btree (enqueued_at, id) WHERE ((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying])::text[]));
CREATE INDEX ix_jobs_state_queue ON public.jobs USING btree (state, queue);
CREATE INDEX ix_jobs_tenant_model ON public.jobs USING btree (tenant, model);
CREATE INDEX ix_schedule_runs_firing ON public.schedule_runs USING btree (slot_at) WHERE ((state)::text = 'firing'::text);
CREATE INDEX ix_summaries_state ON public.summaries USING btree (state);
CREATE INDEX ix_summary_jobs_summary_id ON public.summary_jobs USING btree (summary_id);
CREATE INDEX ix_worker_hours_hour ON public.worker_hours USING btree (hour);
CREATE UNIQUE INDEX uq_schedules_name ON public.schedules USING btree (name) WHERE (removed_at IS NULL);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.batch_faults
    ADD CONSTRAINT fk_batch_faults_batch_id_batch_files FOREIGN KEY (batch_id) REFERENCES public.batch_files(batch_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.batch_files
    ADD CONSTRAINT fk_batch_files_batch_id_batches FOREIGN KEY (batch_id) REFERENCES public.batches(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.chunks
    ADD CONSTRAINT fk_chunks_document_id_documents FOREIGN KEY (document_id) REFERENCES public.documents(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.documents
    ADD CONSTRAINT fk_documents_collection_id_collections FOREIGN KEY (collection_id) REFERENCES public.collections(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_stats
    ADD CONSTRAINT fk_job_stats_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_batch_id_batches FOREIGN KEY (batch_id) REFERENCES public.batches(id);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT fk_results_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.results
    ADD CONSTRAINT fk_results_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.schedule_runs
    ADD CONSTRAINT fk_schedule_runs_schedule_id_schedules FOREIGN KEY (schedule_id) REFERENCES public.schedules(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.summaries
    ADD CONSTRAINT fk_summaries_document_id_documents FOREIGN KEY (document_id) REFERENCES public.documents(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.summary_jobs
    ADD CONSTRAINT fk_summary_jobs_summary_id_summaries FOREIGN KEY (summary_id) REFERENCES public.summaries(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.worker_hours
    ADD CONSTRAINT fk_worker_hours_worker_name_workers FOREIGN KEY (worker_name) REFERENCES public.workers(name) ON DELETE CASCADE;
