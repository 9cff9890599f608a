BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	job_id TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	worker_name TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	started_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	error_code TEXT, 
	error_message TEXT, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT ck_attempts_state CHECK (state IN ('running', 'done', 'failed', 'cancelled', 'requeued', 'lost')), 
	CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempts_job_id_epoch UNIQUE (job_id, epoch)
);
INSERT INTO "attempts" VALUES(1,'cancelled',1777622400000000,'w-stopped','cancelled','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','cancelled_code','it was cancelled');
INSERT INTO "attempts" VALUES(2,'delayed',1777622400000000,'w-stopped','failed','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','failed_code','it was failed');
INSERT INTO "attempts" VALUES(3,'done',1777622400000000,'w-stopped','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL);
INSERT INTO "attempts" VALUES(4,'failed',1777622400000000,'w-stopped','failed','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','context_length','5000 > 4096');
INSERT INTO "attempts" VALUES(5,'handed-back',1777622400000000,'w-stopped','requeued','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL);
INSERT INTO "attempts" VALUES(6,'lost-once',1777622400000000,'w-stopped','lost','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','fenced','ended done after the job had gone on without it');
INSERT INTO "attempts" VALUES(7,'odd',1777622400000000,'w-stopped','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL);
INSERT INTO "attempts" VALUES(8,'running',1777622400000000,'w-stopped','running','2026-03-01 12:00:10.250000',NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(9,'lost-once',1777622400000009,'w-running','done','2026-03-01 12:01:00.250000','2026-03-01 12:01:10.250000',NULL,NULL);
CREATE TABLE batches (
	id TEXT NOT NULL, 
	size BIGINT, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (id)
);
INSERT INTO "batches" VALUES('night',3,'2026-03-01 12:00:00.250000');
CREATE TABLE job_stats (
	job_id TEXT NOT NULL, 
	queue_ms DOUBLE NOT NULL, 
	tokenize_ms DOUBLE NOT NULL, 
	ttft_ms DOUBLE, 
	itl_mean_ms DOUBLE, 
	itl_p99_ms DOUBLE, 
	e2e_ms DOUBLE NOT NULL, 
	kv_blocks_peak BIGINT NOT NULL, 
	kv_bytes_peak BIGINT NOT NULL, 
	kv_block_seconds DOUBLE NOT NULL, 
	prefix_hit_tokens BIGINT NOT NULL, 
	preemptions BIGINT NOT NULL, 
	memory_peak_bytes BIGINT NOT NULL, 
	CONSTRAINT pk_job_stats PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_stats_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "job_stats" VALUES('done',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944);
INSERT INTO "job_stats" VALUES('odd',10000.0,1.5,NULL,NULL,NULL,11000.0,7,7340032,3.5,16,2,6442450944);
INSERT INTO "job_stats" VALUES('lost-once',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944);
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	tenant TEXT, 
	model TEXT, 
	batch_id TEXT, 
	custom_id TEXT, 
	payload TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	epoch BIGINT NOT NULL, 
	attempt_count BIGINT NOT NULL, 
	error_code TEXT, 
	error_message TEXT, 
	enqueued_at DATETIME, 
	started_at DATETIME, 
	ended_at DATETIME, diagnosis TEXT, deadline_at DATETIME, retry_at DATETIME, retry_count BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT ck_jobs_state CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'dead')), 
	CONSTRAINT ck_jobs_epoch CHECK (epoch >= 0), 
	CONSTRAINT ck_jobs_attempt_count CHECK (attempt_count >= 0), 
	CONSTRAINT fk_jobs_batch_id_batches FOREIGN KEY(batch_id) REFERENCES batches (id)
);
INSERT INTO "jobs" VALUES('queued','bulk','default',NULL,'night','row 7','{"prompt": "later", "custom_id": "row 7", "batch_id": "night", "batch_size": 3}','queued',0,0,NULL,NULL,'2026-03-01 12:00:00.250000',NULL,NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('queued-with-deadline','bulk','acme',NULL,NULL,NULL,'{"prompt": "soon", "deadline": "2026-03-01T13:00:00.250000+00:00", "tenant": "acme"}','queued',0,0,NULL,NULL,'2026-03-01 12:00:00.250000',NULL,NULL,NULL,'2026-03-01 13:00:00.250000',NULL,0);
INSERT INTO "jobs" VALUES('cancelled','default','default','smollm2',NULL,NULL,'{"prompt":"What is cancelled?"}','cancelled',1777622400000000,1,'cancelled_code','it was cancelled','2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('delayed','default','default','smollm2',NULL,NULL,'{"prompt":"What is delayed?"}','queued',1777622400000000,1,'failed_code','it was failed','2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000',NULL,NULL,NULL,'2026-03-01 12:15:00.250000',1);
INSERT INTO "jobs" VALUES('done','default','default','smollm2','night',NULL,'{"prompt":"What is done?","system":"Be brief.","batch_id":"night","batch_size":3,"metadata":{"page":"1"}}','done',1777622400000000,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('failed','default','default','smollm2',NULL,NULL,'{"prompt":"What is failed?"}','queued',1777622400000000,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000',NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('handed-back','default','default','smollm2',NULL,NULL,'{"prompt":"What is handed-back?"}','queued',1777622400000000,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000',NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('lost-once','default','default','smollm2',NULL,NULL,'{"prompt":"What is lost-once?"}','done',1777622400000009,2,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:01:10.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('odd','default','acme','smollm2',NULL,'ü/1','{"prompt":"日本語 🎌","model":"smollm2","tenant":"acme","custom_id":"ü/1"}','done',1777622400000000,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('running','default','default','smollm2',NULL,NULL,'{"prompt":"What is running?","max_tokens":9,"deadline":"2026-03-01T14:00:00.250000Z"}','running',1777622400000000,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000',NULL,NULL,'2026-03-01 14:00:00.250000',NULL,0);
INSERT INTO "jobs" VALUES('dead','default',NULL,NULL,NULL,NULL,'{"func": "os.system \u0000"}','dead',0,0,'unknown_function','the record names os.system',NULL,NULL,'2026-03-01 12:08:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('dead-late','default',NULL,NULL,NULL,NULL,'{"func": "os.system"}','dead',0,0,'unknown_function','the record names os.system','2026-03-01 12:00:00.250000',NULL,'2026-03-01 12:08:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('cancelled-early','default','default',NULL,NULL,NULL,'{"prompt":"What is cancelled-early?"}','cancelled',0,0,NULL,NULL,'2026-03-01 12:00:00.250000',NULL,'2026-03-01 12:08:20.250000',NULL,NULL,NULL,0);
CREATE TABLE results (
	job_id TEXT NOT NULL, 
	attempt_id INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	token_ids JSON NOT NULL, 
	finish_reason TEXT, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_results PRIMARY KEY (job_id), 
	CONSTRAINT fk_results_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_results_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE, 
	CONSTRAINT uq_results_attempt_id UNIQUE (attempt_id)
);
INSERT INTO "results" VALUES('cancelled',1,'half an','[]','cancelled',40,0,'2026-03-01 12:00:20.250000');
INSERT INTO "results" VALUES('done',3,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:00:20.250000');
INSERT INTO "results" VALUES('odd',7,'Zürich 東京 👩‍🚀 <b> ''; DROP TABLE jobs; -- =cmd() [31m NUL � and half a pair �','[0, 2147483647]','stop_string',40,3,'2026-03-01 12:00:20.250000');
INSERT INTO "results" VALUES('lost-once',9,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:01:10.250000');
CREATE TABLE workers (
	name TEXT NOT NULL, 
	hostname TEXT NOT NULL, 
	pid BIGINT NOT NULL, 
	model TEXT NOT NULL, 
	device TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	block_size BIGINT NOT NULL, 
	num_blocks BIGINT NOT NULL, 
	bytes_per_block BIGINT NOT NULL, 
	pagemill_version TEXT NOT NULL, 
	torch_version TEXT NOT NULL, 
	transformers_version TEXT NOT NULL, 
	started_at DATETIME NOT NULL, 
	last_heartbeat_at DATETIME NOT NULL, 
	stopped_at DATETIME, 
	jobs_done BIGINT NOT NULL, 
	jobs_failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	prefix_hit_tokens BIGINT NOT NULL, engine_answered_at DATETIME, 
	CONSTRAINT pk_workers PRIMARY KEY (name)
);
INSERT INTO "workers" VALUES('w-stopped','host',4711,'smollm2','cpu','float32',16,2048,368640,'0.1.0','2.11.0','5.24.0','2026-03-01 12:00:00.250000','2026-03-01 12:00:00.250000','2026-03-01 12:08:20.250000',0,0,0,0,0,NULL);
INSERT INTO "workers" VALUES('w-running','host',4711,'smollm2','cpu','float32',16,2048,368640,'0.1.0','2.11.0','5.24.0','2026-03-01 12:00:05.250000','2026-03-01 12:08:20.250000',NULL,3,2,400,50,160,'2026-03-01 12:08:19.750000');
CREATE INDEX ix_jobs_state_queue ON jobs (state, queue);
CREATE INDEX ix_jobs_batch_id ON jobs (batch_id);
CREATE INDEX ix_jobs_ended_at ON jobs (ended_at);
CREATE INDEX ix_jobs_tenant_model ON jobs (tenant, model);
CREATE INDEX ix_jobs_enqueued_at_id ON jobs (enqueued_at, id) WHERE state IN ('queued', 'running');
COMMIT;
