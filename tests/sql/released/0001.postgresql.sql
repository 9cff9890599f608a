CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
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
    CONSTRAINT ck_attempts_state CHECK (((state)::text = ANY ((ARRAY['running'::character varying, 'done'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'requeued'::character varying, 'lost'::character varying])::text[])))
);
CREATE SEQUENCE public.attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.attempts_id_seq OWNED BY public.attempts.id;
CREATE TABLE public.batches (
    id text NOT NULL,
    size bigint,
    created_at timestamp with time zone NOT NULL
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
    memory_peak_bytes bigint NOT NULL
);
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
    CONSTRAINT ck_jobs_attempt_count CHECK ((attempt_count >= 0)),
    CONSTRAINT ck_jobs_epoch CHECK ((epoch >= 0)),
    CONSTRAINT ck_jobs_state CHECK (((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying, 'done'::character varying, 'failed'::character varying, 'cancelled'::character varying, 'dead'::character varying])::text[])))
);
CREATE TABLE public.results (
    job_id text NOT NULL,
    attempt_id bigint NOT NULL,
    text text NOT NULL,
    token_ids json NOT NULL,
    finish_reason text,
    prompt_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    created_at timestamp with time zone NOT NULL
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
    prefix_hit_tokens bigint NOT NULL
);
ALTER TABLE ONLY public.attempts ALTER COLUMN id SET DEFAULT nextval('public.attempts_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0001');
INSERT INTO public.attempts VALUES (8, 'running', 1777622400000000, 'w-stopped', 'running', '2026-03-01 12:00:10.25+00', NULL, NULL, NULL);
INSERT INTO public.attempts VALUES (1, 'cancelled', 1777622400000000, 'w-stopped', 'cancelled', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'cancelled_code', 'it was cancelled');
INSERT INTO public.attempts VALUES (2, 'delayed', 1777622400000000, 'w-stopped', 'failed', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'failed_code', 'it was failed');
INSERT INTO public.attempts VALUES (3, 'done', 1777622400000000, 'w-stopped', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL);
INSERT INTO public.attempts VALUES (4, 'failed', 1777622400000000, 'w-stopped', 'failed', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'context_length', '5000 > 4096');
INSERT INTO public.attempts VALUES (5, 'handed-back', 1777622400000000, 'w-stopped', 'requeued', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL);
INSERT INTO public.attempts VALUES (7, 'odd', 1777622400000000, 'w-stopped', 'done', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', NULL, NULL);
INSERT INTO public.attempts VALUES (6, 'lost-once', 1777622400000000, 'w-stopped', 'lost', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00', 'fenced', 'ended done after the job had gone on without it');
INSERT INTO public.attempts VALUES (9, 'lost-once', 1777622400000009, 'w-running', 'done', '2026-03-01 12:01:00.25+00', '2026-03-01 12:01:10.25+00', NULL, NULL);
INSERT INTO public.batches VALUES ('night', 3, '2026-03-01 12:00:00.25+00');
INSERT INTO public.job_stats VALUES ('done', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944);
INSERT INTO public.job_stats VALUES ('odd', 10000, 1.5, NULL, NULL, NULL, 11000, 7, 7340032, 3.5, 16, 2, 6442450944);
INSERT INTO public.job_stats VALUES ('lost-once', 10000, 1.5, 80.25, 12.5, 20, 11000, 7, 7340032, 3.5, 16, 0, 6442450944);
INSERT INTO public.jobs VALUES ('running', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is running?","max_tokens":9}', 'running', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL);
INSERT INTO public.jobs VALUES ('cancelled', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is cancelled?"}', 'cancelled', 1777622400000000, 1, 'cancelled_code', 'it was cancelled', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00');
INSERT INTO public.jobs VALUES ('delayed', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is delayed?"}', 'failed', 1777622400000000, 1, 'failed_code', 'it was failed', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00');
INSERT INTO public.jobs VALUES ('done', 'default', 'default', 'smollm2', 'night', NULL, '{"prompt":"What is done?","system":"Be brief.","batch_id":"night","batch_size":3,"metadata":{"page":"1"}}', 'done', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00');
INSERT INTO public.jobs VALUES ('handed-back', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is handed-back?"}', 'queued', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL);
INSERT INTO public.jobs VALUES ('odd', 'default', 'acme', 'smollm2', NULL, 'ü/1', '{"prompt":"日本語 🎌","model":"smollm2","tenant":"acme","custom_id":"ü/1"}', 'done', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:00:20.25+00');
INSERT INTO public.jobs VALUES ('lost-once', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is lost-once?"}', 'done', 1777622400000009, 2, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', '2026-03-01 12:01:10.25+00');
INSERT INTO public.jobs VALUES ('dead', 'default', NULL, NULL, NULL, NULL, '{"func": "os.system"}', 'dead', 0, 0, 'unknown_function', 'the record names os.system', NULL, NULL, '2026-03-01 12:08:20.25+00');
INSERT INTO public.jobs VALUES ('dead-late', 'default', NULL, NULL, NULL, NULL, 'x', 'dead', 0, 0, 'unknown_function', 'the record names os.system', '2026-03-01 12:00:00.25+00', NULL, '2026-03-01 12:08:20.25+00');
INSERT INTO public.jobs VALUES ('cancelled-early', 'default', 'default', NULL, NULL, NULL, '{"prompt":"What is cancelled-early?"}', 'cancelled', 0, 0, NULL, NULL, '2026-03-01 12:00:00.25+00', NULL, '2026-03-01 12:08:20.25+00');
INSERT INTO public.jobs VALUES ('failed', 'default', 'default', 'smollm2', NULL, NULL, '{"prompt":"What is failed?"}', 'queued', 1777622400000000, 1, NULL, NULL, '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:10.25+00', NULL);
INSERT INTO public.results VALUES ('cancelled', 1, 'half an', '[]', 'cancelled', 40, 0, '2026-03-01 12:00:20.25+00');
INSERT INTO public.results VALUES ('done', 3, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:00:20.25+00');
INSERT INTO public.results VALUES ('odd', 7, 'Zürich 東京 👩‍🚀 <b> ''; DROP TABLE jobs; -- =cmd() [31m NUL � and half a pair �', '[0, 2147483647]', 'stop_string', 40, 3, '2026-03-01 12:00:20.25+00');
INSERT INTO public.results VALUES ('lost-once', 9, 'It is what it is.', '[5, 6, 7]', 'stop', 40, 3, '2026-03-01 12:01:10.25+00');
INSERT INTO public.workers VALUES ('w-running', 'host', 4711, 'smollm2', 'cpu', 'float32', 16, 2048, 368640, '0.1.0', '2.11.0', '5.24.0', '2026-03-01 12:00:05.25+00', '2026-03-01 12:08:20.25+00', NULL, 3, 2, 400, 50, 160);
INSERT INTO public.workers VALUES ('w-stopped', 'host', 4711, 'smollm2', 'cpu', 'float32', 16, 2048, 368640, '0.1.0', '2.11.0', '5.24.0', '2026-03-01 12:00:00.25+00', '2026-03-01 12:00:00.25+00', '2026-03-01 12:08:20.25+00', 0, 0, 0, 0, 0);
SELECT pg_catalog.setval('public.attempts_id_seq', 9, true);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (id);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT pk_batches PRIMARY KEY (id);
ALTER TABLE ONLY public.job_stats
    ADD CONSTRAINT pk_job_stats PRIMARY KEY (job_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (id);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT pk_results PRIMARY KEY (job_id);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT pk_workers PRIMARY KEY (name);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT uq_attempts_job_id_epoch UNIQUE (job_id, epoch);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT uq_results_attempt_id UNIQUE (attempt_id);
CREATE INDEX ix_jobs_batch_id ON public.jobs USING btree (batch_id);
CREATE INDEX ix_jobs_ended_at ON public.jobs USING btree (ended_at);
CREATE INDEX ix_jobs_state_queue ON public.jobs USING btree (state, queue);
CREATE INDEX ix_jobs_tenant_model ON public.jobs USING btree (tenant, model);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_stats
    ADD CONSTRAINT fk_job_stats_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_batch_id_batches FOREIGN KEY (batch_id) REFERENCES public.batches(id);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT fk_results_attempt_id_attempts FOREIGN KEY (attempt_id) REFERENCES public.attempts(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.results
    ADD CONSTRAINT fk_results_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;
