BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0015');
CREATE TABLE api_files (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	filename TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	num_bytes BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, expires_at DATETIME, 
	CONSTRAINT pk_api_files PRIMARY KEY (id)
);
INSERT INTO "api_files" VALUES('file-000000000000000000000001','acme','ü.jsonl','batch',17,'2026-03-01 12:00:00.250000','2026-03-02 12:00:00.250000');
CREATE TABLE api_keys (
	id TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	name TEXT, 
	key_hash TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	revoked_at DATETIME, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT uq_api_keys_key_hash UNIQUE (key_hash)
);
INSERT INTO "api_keys" VALUES('key_0a8c2e8d3acb','acme','old','21f2d7558910733d700aa97b5bf06d6e233c195214d57cc3b22a12b95a956b9a','2026-03-01 12:00:05.250000','2026-03-01 12:00:05.250000');
INSERT INTO "api_keys" VALUES('key_f002b477683a','acme',NULL,'8cbd6a8d4377e52d1ffbe998f249fb5c50ec95ef34df787adb2327224045a21c','2026-03-01 12:00:05.250000',NULL);
CREATE TABLE attempts (
	id INTEGER NOT NULL, 
	job_id TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	worker_name TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	started_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	error_code TEXT, 
	error_message TEXT, engine_seconds DOUBLE, wasted_engine_seconds DOUBLE, kv_block_seconds_share DOUBLE, computed_tokens BIGINT, recomputed_tokens BIGINT, tokenized_ms DOUBLE, admitted_ms DOUBLE, first_token_ms DOUBLE, last_token_ms DOUBLE, committed_ms DOUBLE, 
	CONSTRAINT pk_attempts PRIMARY KEY (id), 
	CONSTRAINT ck_attempts_state CHECK (state IN ('running', 'done', 'failed', 'cancelled', 'requeued', 'lost')), 
	CONSTRAINT fk_attempts_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_attempts_job_id_epoch UNIQUE (job_id, epoch)
);
INSERT INTO "attempts" VALUES(1,'cancelled',1777622400000000,'w-stopped','cancelled','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','cancelled_code','it was cancelled',0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(2,'delayed',1777622400000000,'w-stopped','failed','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','failed_code','it was failed',0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(3,'done',1777622400000000,'w-stopped','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(4,'failed',1777622400000000,'w-stopped','failed','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','context_length','5000 > 4096',0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(5,'handed-back',1777622400000000,'w-stopped','requeued','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(6,'lost-once',1777622400000000,'w-stopped','lost','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000','fenced','ended done after the job had gone on without it',0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(7,'odd',1777622400000000,'w-stopped','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(8,'running',1777622400000000,'w-stopped','running','2026-03-01 12:00:10.250000',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(9,'lost-once',1777622400000009,'w-running','done','2026-03-01 12:01:00.250000','2026-03-01 12:01:10.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(10,'with-figures',1777622400000100,'w-running','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,1.5,0.25,2.5,43,3,2.0,3.0,80.0,110.0,112.0);
INSERT INTO "attempts" VALUES(11,'batch_00000000000000000000f11e-000000001',1777622400000101,'w-running','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(12,'batch_00000000000000000000f11e-000000003',1777622400000101,'w-running','running','2026-03-01 12:00:10.250000',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "attempts" VALUES(13,'summary-job',1777622400000102,'w-running','done','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,0.0,0.0,0.0,0,0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE batch_faults (
	batch_id TEXT NOT NULL, 
	line BIGINT NOT NULL, 
	custom_id TEXT, 
	code TEXT, 
	message TEXT NOT NULL, 
	param TEXT, 
	CONSTRAINT pk_batch_faults PRIMARY KEY (batch_id, line), 
	CONSTRAINT fk_batch_faults_batch_id_batch_files FOREIGN KEY(batch_id) REFERENCES batch_files (batch_id) ON DELETE CASCADE
);
INSERT INTO "batch_faults" VALUES('batch_00000000000000000000f11e',2,NULL,'invalid_json','is no JSON','body');
CREATE TABLE batch_files (
	batch_id TEXT NOT NULL, 
	run_key TEXT, 
	tenant TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	endpoint TEXT, 
	input_name TEXT NOT NULL, 
	output_name TEXT, 
	num_requests BIGINT, 
	num_faults BIGINT NOT NULL, 
	num_completed BIGINT, 
	num_failed BIGINT, 
	window_seconds BIGINT, 
	labels TEXT NOT NULL, 
	failure TEXT, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	in_progress_at DATETIME, 
	finalizing_at DATETIME, 
	completed_at DATETIME, 
	failed_at DATETIME, 
	expired_at DATETIME, 
	cancelling_at DATETIME, 
	cancelled_at DATETIME, 
	CONSTRAINT pk_batch_files PRIMARY KEY (batch_id), 
	CONSTRAINT fk_batch_files_batch_id_batches FOREIGN KEY(batch_id) REFERENCES batches (id) ON DELETE CASCADE, 
	CONSTRAINT uq_batch_files_run_key UNIQUE (run_key)
);
INSERT INTO "batch_files" VALUES('batch_00000000000000000000f11e','digest','acme','bulk','/v1/chat/completions','in.jsonl',NULL,3,1,NULL,NULL,86400,'{"\u00fc": "\u00e9"}',NULL,'2026-03-01 12:00:00.250000',NULL,'2026-03-01 12:01:40.250000',NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE batches (
	id TEXT NOT NULL, 
	size BIGINT, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_batches PRIMARY KEY (id)
);
INSERT INTO "batches" VALUES('night',3,'2026-03-01 12:00:00.250000');
INSERT INTO "batches" VALUES('batch_00000000000000000000f11e',NULL,'2026-03-01 12:00:00.250000');
INSERT INTO "batches" VALUES('summaries',NULL,'2026-03-01 12:00:00.250000');
CREATE TABLE choices (
	job_id TEXT NOT NULL, 
	choice_index INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	token_ids JSON NOT NULL, 
	finish_reason TEXT, 
	logprobs JSON, 
	CONSTRAINT pk_choices PRIMARY KEY (job_id, choice_index), 
	CONSTRAINT fk_choices_job_id_results FOREIGN KEY(job_id) REFERENCES results (job_id) ON DELETE CASCADE
);
INSERT INTO "choices" VALUES('with-figures',1,'It is ü.','[5, 9]','length','[{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.25]]}]');
CREATE TABLE chunks (
	id INTEGER NOT NULL, 
	document_id INTEGER NOT NULL, 
	position BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	text TEXT NOT NULL, 
	num_tokens BIGINT NOT NULL, 
	overlap_characters BIGINT NOT NULL, 
	overlap_tokens BIGINT NOT NULL, 
	CONSTRAINT pk_chunks PRIMARY KEY (id), 
	CONSTRAINT fk_chunks_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE, 
	CONSTRAINT uq_chunks_document_id_position UNIQUE (document_id, position)
);
INSERT INTO "chunks" VALUES(1,1,0,0,'Ä text',2,0,0);
CREATE TABLE collections (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	source_kind TEXT NOT NULL, 
	source TEXT NOT NULL, 
	model TEXT NOT NULL, 
	tokenizer_hash TEXT NOT NULL, 
	chunk_tokens BIGINT NOT NULL, 
	overlap_tokens BIGINT NOT NULL, 
	revision BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, 
	indexed_at DATETIME NOT NULL, source_options TEXT, 
	CONSTRAINT pk_collections PRIMARY KEY (id), 
	CONSTRAINT uq_collections_name UNIQUE (name), 
	CONSTRAINT uq_collections_key UNIQUE ("key")
);
INSERT INTO "collections" VALUES(1,'library','kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk','folder','/srv/library','m','tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt',384,48,1,'2026-03-01 12:00:00.250000','2026-03-01 12:00:00.250000','{"pattern": "*.md"}');
CREATE TABLE documents (
	id INTEGER NOT NULL, 
	collection_id INTEGER NOT NULL, 
	source TEXT NOT NULL, 
	title TEXT NOT NULL, 
	format TEXT NOT NULL, 
	source_hash TEXT, 
	content_hash TEXT, 
	num_characters BIGINT NOT NULL, 
	num_tokens BIGINT NOT NULL, 
	problem TEXT, 
	changed_at DATETIME NOT NULL, 
	deleted_at DATETIME, 
	CONSTRAINT pk_documents PRIMARY KEY (id), 
	CONSTRAINT fk_documents_collection_id_collections FOREIGN KEY(collection_id) REFERENCES collections (id) ON DELETE CASCADE, 
	CONSTRAINT uq_documents_collection_id_source UNIQUE (collection_id, source)
);
INSERT INTO "documents" VALUES(1,1,'a.md','Ä','md','ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss','cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc',5,2,NULL,'2026-03-01 12:00:00.250000',NULL);
INSERT INTO "documents" VALUES(2,1,'b.pdf','Ä','pdf','ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss',NULL,5,2,'is encrypted','2026-03-01 12:00:00.250000',NULL);
CREATE TABLE figure_histograms (
	id INTEGER NOT NULL, 
	starts_at DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	metric TEXT NOT NULL, 
	bucket BIGINT NOT NULL, 
	jobs BIGINT NOT NULL, 
	CONSTRAINT pk_figure_histograms PRIMARY KEY (id)
);
INSERT INTO "figure_histograms" VALUES(1,'2026-03-01 12:00:00.000000','default','smollm2','acme','e2e_ms',465,2);
INSERT INTO "figure_histograms" VALUES(2,'2026-03-01 12:00:00.000000','default','smollm2','acme','itl_mean_ms',126,1);
INSERT INTO "figure_histograms" VALUES(3,'2026-03-01 12:00:00.000000','default','smollm2','acme','itl_p99_ms',149,1);
INSERT INTO "figure_histograms" VALUES(4,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_block_seconds',62,2);
INSERT INTO "figure_histograms" VALUES(5,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_blocks_peak',97,2);
INSERT INTO "figure_histograms" VALUES(6,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_bytes_peak',790,2);
INSERT INTO "figure_histograms" VALUES(7,'2026-03-01 12:00:00.000000','default','smollm2','acme','memory_peak_bytes',1129,2);
INSERT INTO "figure_histograms" VALUES(8,'2026-03-01 12:00:00.000000','default','smollm2','acme','queue_ms',460,2);
INSERT INTO "figure_histograms" VALUES(9,'2026-03-01 12:00:00.000000','default','smollm2','acme','tokenize_ms',20,2);
INSERT INTO "figure_histograms" VALUES(10,'2026-03-01 12:00:00.000000','default','smollm2','acme','ttft_ms',219,1);
INSERT INTO "figure_histograms" VALUES(11,'2026-03-01 12:00:00.000000','default','smollm2','default','e2e_ms',465,4);
INSERT INTO "figure_histograms" VALUES(12,'2026-03-01 12:00:00.000000','default','smollm2','default','itl_mean_ms',126,4);
INSERT INTO "figure_histograms" VALUES(13,'2026-03-01 12:00:00.000000','default','smollm2','default','itl_p99_ms',149,4);
INSERT INTO "figure_histograms" VALUES(14,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_block_seconds',62,4);
INSERT INTO "figure_histograms" VALUES(15,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_blocks_peak',97,4);
INSERT INTO "figure_histograms" VALUES(16,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_bytes_peak',790,4);
INSERT INTO "figure_histograms" VALUES(17,'2026-03-01 12:00:00.000000','default','smollm2','default','memory_peak_bytes',1129,4);
INSERT INTO "figure_histograms" VALUES(18,'2026-03-01 12:00:00.000000','default','smollm2','default','queue_ms',460,4);
INSERT INTO "figure_histograms" VALUES(19,'2026-03-01 12:00:00.000000','default','smollm2','default','tokenize_ms',20,4);
INSERT INTO "figure_histograms" VALUES(20,'2026-03-01 12:00:00.000000','default','smollm2','default','ttft_ms',219,4);
CREATE TABLE hourly_costs (
	id INTEGER NOT NULL, 
	hour DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	currency TEXT, 
	jobs BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	engine_seconds DOUBLE NOT NULL, 
	wasted_engine_seconds DOUBLE NOT NULL, 
	kv_block_seconds_share DOUBLE NOT NULL, 
	cost DOUBLE, 
	CONSTRAINT pk_hourly_costs PRIMARY KEY (id)
);
INSERT INTO "hourly_costs" VALUES(1,'2026-03-01 12:00:00.000000','default','smollm2','acme',NULL,2,2,1.5,0.25,2.5,NULL);
INSERT INTO "hourly_costs" VALUES(2,'2026-03-01 12:00:00.000000','default','smollm2','default',NULL,5,6,0.0,0.0,0.0,NULL);
CREATE TABLE hourly_failures (
	id INTEGER NOT NULL, 
	hour DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	state TEXT NOT NULL, 
	error_code TEXT NOT NULL, 
	jobs BIGINT NOT NULL, 
	first_at DATETIME NOT NULL, 
	last_at DATETIME NOT NULL, 
	example_message TEXT, 
	CONSTRAINT pk_hourly_failures PRIMARY KEY (id)
);
INSERT INTO "hourly_failures" VALUES(1,'2026-03-01 12:00:00.000000','default',NULL,NULL,'dead','unknown_function',2,'2026-03-01 12:08:20.250000','2026-03-01 12:08:20.250000','the record names os.system');
CREATE TABLE hourly_figures (
	id INTEGER NOT NULL, 
	hour DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	metric TEXT NOT NULL, 
	jobs BIGINT NOT NULL, 
	total DOUBLE NOT NULL, 
	largest DOUBLE NOT NULL, 
	CONSTRAINT pk_hourly_figures PRIMARY KEY (id)
);
INSERT INTO "hourly_figures" VALUES(1,'2026-03-01 12:00:00.000000','default','smollm2','acme','e2e_ms',2,22000.0,11000.0);
INSERT INTO "hourly_figures" VALUES(2,'2026-03-01 12:00:00.000000','default','smollm2','acme','itl_mean_ms',1,12.5,12.5);
INSERT INTO "hourly_figures" VALUES(3,'2026-03-01 12:00:00.000000','default','smollm2','acme','itl_p99_ms',1,20.0,20.0);
INSERT INTO "hourly_figures" VALUES(4,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_block_seconds',2,7.0,3.5);
INSERT INTO "hourly_figures" VALUES(5,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_blocks_peak',2,14.0,7.0);
INSERT INTO "hourly_figures" VALUES(6,'2026-03-01 12:00:00.000000','default','smollm2','acme','kv_bytes_peak',2,14680064.0,7340032.0);
INSERT INTO "hourly_figures" VALUES(7,'2026-03-01 12:00:00.000000','default','smollm2','acme','memory_peak_bytes',2,12884901888.0,6442450944.0);
INSERT INTO "hourly_figures" VALUES(8,'2026-03-01 12:00:00.000000','default','smollm2','acme','queue_ms',2,20000.0,10000.0);
INSERT INTO "hourly_figures" VALUES(9,'2026-03-01 12:00:00.000000','default','smollm2','acme','tokenize_ms',2,3.0,1.5);
INSERT INTO "hourly_figures" VALUES(10,'2026-03-01 12:00:00.000000','default','smollm2','acme','ttft_ms',1,80.25,80.25);
INSERT INTO "hourly_figures" VALUES(11,'2026-03-01 12:00:00.000000','default','smollm2','default','e2e_ms',4,44000.0,11000.0);
INSERT INTO "hourly_figures" VALUES(12,'2026-03-01 12:00:00.000000','default','smollm2','default','itl_mean_ms',4,50.0,12.5);
INSERT INTO "hourly_figures" VALUES(13,'2026-03-01 12:00:00.000000','default','smollm2','default','itl_p99_ms',4,80.0,20.0);
INSERT INTO "hourly_figures" VALUES(14,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_block_seconds',4,14.0,3.5);
INSERT INTO "hourly_figures" VALUES(15,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_blocks_peak',4,28.0,7.0);
INSERT INTO "hourly_figures" VALUES(16,'2026-03-01 12:00:00.000000','default','smollm2','default','kv_bytes_peak',4,29360128.0,7340032.0);
INSERT INTO "hourly_figures" VALUES(17,'2026-03-01 12:00:00.000000','default','smollm2','default','memory_peak_bytes',4,25769803776.0,6442450944.0);
INSERT INTO "hourly_figures" VALUES(18,'2026-03-01 12:00:00.000000','default','smollm2','default','queue_ms',4,40000.0,10000.0);
INSERT INTO "hourly_figures" VALUES(19,'2026-03-01 12:00:00.000000','default','smollm2','default','tokenize_ms',4,6.0,1.5);
INSERT INTO "hourly_figures" VALUES(20,'2026-03-01 12:00:00.000000','default','smollm2','default','ttft_ms',4,321.0,80.25);
CREATE TABLE hourly_totals (
	id INTEGER NOT NULL, 
	hour DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	jobs_done BIGINT NOT NULL, 
	jobs_failed BIGINT NOT NULL, 
	jobs_cancelled BIGINT NOT NULL, 
	jobs_dead BIGINT NOT NULL, 
	jobs_with_retries BIGINT NOT NULL, 
	attempts BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	preemptions BIGINT NOT NULL, 
	jobs_with_prefix_figures BIGINT NOT NULL, 
	jobs_with_hit BIGINT NOT NULL, 
	prefix_prompt_tokens BIGINT NOT NULL, 
	prefix_hit_tokens BIGINT NOT NULL, 
	kv_block_seconds DOUBLE NOT NULL, 
	kv_block_seconds_limit DOUBLE, 
	kv_block_seconds_share DOUBLE, 
	saved_against_limit_block_seconds DOUBLE, 
	saved_by_sharing_block_seconds DOUBLE, 
	first_claim_at DATETIME, 
	last_end_at DATETIME, 
	CONSTRAINT pk_hourly_totals PRIMARY KEY (id)
);
INSERT INTO "hourly_totals" VALUES(1,'2026-03-01 12:00:00.000000','default',NULL,NULL,0,0,0,2,0,0,0,0,0,0,0,0,0,0.0,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "hourly_totals" VALUES(2,'2026-03-01 12:00:00.000000','default',NULL,'default',0,0,1,0,0,0,0,0,0,0,0,0,0,0.0,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "hourly_totals" VALUES(3,'2026-03-01 12:00:00.000000','default','smollm2','acme',2,0,0,0,0,2,80,6,2,2,2,80,32,7.0,9.5,2.5,6.0,4.5,'2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000');
INSERT INTO "hourly_totals" VALUES(4,'2026-03-01 12:00:00.000000','default','smollm2','default',4,0,1,0,1,6,200,12,0,4,4,160,64,14.0,NULL,0.0,NULL,14.0,'2026-03-01 12:00:10.250000','2026-03-01 12:01:10.250000');
CREATE TABLE hourly_waste (
	id INTEGER NOT NULL, 
	hour DATETIME NOT NULL, 
	queue TEXT NOT NULL, 
	model TEXT, 
	tenant TEXT, 
	reason TEXT NOT NULL, 
	attempts BIGINT NOT NULL, 
	wasted_tokens BIGINT NOT NULL, 
	wasted_engine_seconds DOUBLE NOT NULL, 
	CONSTRAINT pk_hourly_waste PRIMARY KEY (id)
);
INSERT INTO "hourly_waste" VALUES(1,'2026-03-01 12:00:00.000000','default','smollm2','acme','recomputed',1,3,0.25);
INSERT INTO "hourly_waste" VALUES(2,'2026-03-01 12:00:00.000000','default','smollm2','default','fenced',1,0,0.0);
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
	memory_peak_bytes BIGINT NOT NULL, kv_blocks_limit BIGINT, kv_block_seconds_limit DOUBLE, drafted_tokens BIGINT, accepted_tokens BIGINT, 
	CONSTRAINT pk_job_stats PRIMARY KEY (job_id), 
	CONSTRAINT fk_job_stats_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "job_stats" VALUES('done',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944,NULL,NULL,NULL,NULL);
INSERT INTO "job_stats" VALUES('odd',10000.0,1.5,NULL,NULL,NULL,11000.0,7,7340032,3.5,16,2,6442450944,NULL,NULL,NULL,NULL);
INSERT INTO "job_stats" VALUES('lost-once',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944,NULL,NULL,NULL,NULL);
INSERT INTO "job_stats" VALUES('with-figures',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944,20,9.5,8,5);
INSERT INTO "job_stats" VALUES('batch_00000000000000000000f11e-000000001',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944,NULL,NULL,NULL,NULL);
INSERT INTO "job_stats" VALUES('summary-job',10000.0,1.5,80.25,12.5,20.0,11000.0,7,7340032,3.5,16,0,6442450944,NULL,NULL,NULL,NULL);
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
INSERT INTO "jobs" VALUES('with-figures','default','acme','smollm2',NULL,NULL,'{"prompt":"What is with-figures?","tenant":"acme","logprobs":true}','done',1777622400000100,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('batch_00000000000000000000f11e-000000001','default','default','smollm2','batch_00000000000000000000f11e','c1','{"prompt":"What is batch_00000000000000000000f11e-000000001?","batch_id":"batch_00000000000000000000f11e","custom_id":"c1"}','done',1777622400000101,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('batch_00000000000000000000f11e-000000003','default','default','smollm2','batch_00000000000000000000f11e','c3','{"prompt":"What is batch_00000000000000000000f11e-000000003?","batch_id":"batch_00000000000000000000f11e","custom_id":"c3"}','running',1777622400000101,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000',NULL,NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('summary-job','default','default','smollm2','summaries',NULL,'{"prompt":"What is summary-job?","batch_id":"summaries"}','done',1777622400000102,1,NULL,NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:10.250000','2026-03-01 12:00:20.250000',NULL,NULL,NULL,0);
INSERT INTO "jobs" VALUES('outbox-1','bulk','default',NULL,NULL,NULL,'{"schema_version": 1, "prompt": "from an app"}','queued',0,0,NULL,NULL,'2026-03-01 12:00:30.250000',NULL,NULL,NULL,NULL,NULL,0);
CREATE TABLE leaders (
	duty TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_leaders PRIMARY KEY (duty)
);
INSERT INTO "leaders" VALUES('schedules','w-running',1,'2026-03-01 12:02:10.250000');
CREATE TABLE pagemill_outbox (
	id INTEGER NOT NULL, 
	job_id TEXT DEFAULT (lower(hex(randomblob(16)))) NOT NULL, 
	queue TEXT DEFAULT 'default' NOT NULL, 
	payload TEXT NOT NULL, 
	created_at DATETIME DEFAULT CURRENT_TIMESTAMP NOT NULL, 
	recorded_at DATETIME, 
	CONSTRAINT pk_pagemill_outbox PRIMARY KEY (id)
);
INSERT INTO "pagemill_outbox" VALUES(1,'outbox-1','bulk','{"prompt": "from an app"}','2026-03-01 12:00:00.250000','2026-03-01 12:00:30.250000');
INSERT INTO "pagemill_outbox" VALUES(2,'outbox-2','bulk','{"prompt": "from an app"}','2026-03-01 12:00:00.250000',NULL);
CREATE TABLE results (
	job_id TEXT NOT NULL, 
	attempt_id INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	token_ids JSON NOT NULL, 
	finish_reason TEXT, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	created_at DATETIME NOT NULL, logprobs JSON, prompt_logprobs JSON, prompt_token_ids JSON, 
	CONSTRAINT pk_results PRIMARY KEY (job_id), 
	CONSTRAINT fk_results_job_id_jobs FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_results_attempt_id_attempts FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE, 
	CONSTRAINT uq_results_attempt_id UNIQUE (attempt_id)
);
INSERT INTO "results" VALUES('cancelled',1,'half an','[]','cancelled',40,0,'2026-03-01 12:00:20.250000',NULL,NULL,NULL);
INSERT INTO "results" VALUES('done',3,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:00:20.250000',NULL,NULL,NULL);
INSERT INTO "results" VALUES('odd',7,'Zürich 東京 👩‍🚀 <b> ''; DROP TABLE jobs; -- =cmd() [31m NUL � and half a pair �','[0, 2147483647]','stop_string',40,3,'2026-03-01 12:00:20.250000',NULL,NULL,NULL);
INSERT INTO "results" VALUES('lost-once',9,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:01:10.250000',NULL,NULL,NULL);
INSERT INTO "results" VALUES('with-figures',10,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:00:20.250000','[{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.25]]}]','[{"token_id": 5, "logprob": -0.5, "top": [[5, -0.5], [6, -1.25]]}]','[1, 5]');
INSERT INTO "results" VALUES('batch_00000000000000000000f11e-000000001',11,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:00:20.250000',NULL,NULL,NULL);
INSERT INTO "results" VALUES('summary-job',13,'It is what it is.','[5, 6, 7]','stop',40,3,'2026-03-01 12:00:20.250000',NULL,NULL,NULL);
CREATE TABLE rolled_hours (
	hour DATETIME NOT NULL, 
	jobs BIGINT NOT NULL, 
	is_final BOOLEAN NOT NULL, 
	CONSTRAINT pk_rolled_hours PRIMARY KEY (hour)
);
INSERT INTO "rolled_hours" VALUES('2026-03-01 00:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 01:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 02:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 03:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 04:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 05:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 06:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 07:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 08:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 09:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 10:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 11:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 12:00:00.000000',10,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 13:00:00.000000',0,0);
INSERT INTO "rolled_hours" VALUES('2026-03-01 14:00:00.000000',0,0);
CREATE TABLE schedule_runs (
	id TEXT NOT NULL, 
	schedule_id TEXT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	slot_at DATETIME NOT NULL, 
	last_slot_at DATETIME NOT NULL, 
	num_slots BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	skip_reason VARCHAR(16), 
	message TEXT, 
	batch_id TEXT, 
	source_digest TEXT, 
	num_jobs BIGINT, 
	num_submitted BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	num_failures BIGINT NOT NULL, 
	retry_at DATETIME, 
	claimed_by TEXT, 
	claimed_until DATETIME, 
	opened_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_schedule_runs PRIMARY KEY (id), 
	CONSTRAINT ck_schedule_runs_kind CHECK (kind IN ('slot', 'manual')), 
	CONSTRAINT ck_schedule_runs_state CHECK (state IN ('firing', 'submitted', 'skipped', 'failed')), 
	CONSTRAINT ck_schedule_runs_skip_reason CHECK (skip_reason IN ('missed', 'overlap', 'paused')), 
	CONSTRAINT fk_schedule_runs_schedule_id_schedules FOREIGN KEY(schedule_id) REFERENCES schedules (id) ON DELETE CASCADE, 
	CONSTRAINT uq_schedule_runs_schedule_id_kind_slot_at UNIQUE (schedule_id, kind, slot_at)
);
INSERT INTO "schedule_runs" VALUES('4818c6e3c6b65ad1bc4a1ca5aa6ab149','id-nightly','slot','2026-03-01 12:01:00.000000','2026-03-01 12:01:00.000000',1,'submitted',NULL,NULL,'nightly.20260301T1201Z',NULL,1,1,1,0,NULL,'w-running',NULL,'2026-03-01 12:01:00.250000','2026-03-01 12:01:00.250000');
INSERT INTO "schedule_runs" VALUES('53a0b74581989996dc532cc10b4dc046','id-nightly','slot','2026-03-01 12:02:00.000000','2026-03-01 12:02:00.000000',1,'firing',NULL,'Redis does not answer','nightly.20260301T1202Z',NULL,1,0,1,1,'2026-03-01 12:02:01.250000','w-running',NULL,'2026-03-01 12:02:00.250000',NULL);
INSERT INTO "schedule_runs" VALUES('392bf9ccbf8d23464d4fa8eedb637f4a','id-nightly','slot','2026-03-01 12:03:00.000000','2026-03-01 12:10:00.000000',8,'skipped','paused','the schedule was paused',NULL,NULL,NULL,0,0,0,NULL,NULL,NULL,'2026-03-01 12:10:00.250000','2026-03-01 12:10:00.250000');
CREATE TABLE schedules (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	expression TEXT NOT NULL, 
	time_zone TEXT NOT NULL, 
	action TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	missed VARCHAR(16) NOT NULL, 
	overlap VARCHAR(16) NOT NULL, 
	grace_seconds DOUBLE NOT NULL, 
	starts_at DATETIME, 
	ends_at DATETIME, 
	created_at DATETIME NOT NULL, 
	paused_at DATETIME, 
	removed_at DATETIME, 
	next_slot_at DATETIME, 
	CONSTRAINT pk_schedules PRIMARY KEY (id), 
	CONSTRAINT ck_schedules_missed CHECK (missed IN ('once', 'skip')), 
	CONSTRAINT ck_schedules_overlap CHECK (overlap IN ('skip', 'allow'))
);
INSERT INTO "schedules" VALUES('id-nightly','nightly','* * * * *','UTC','{"kind":"prompt","job":{"prompt":"Good night."}}','default','default','once','allow',300.0,NULL,NULL,'2026-03-01 12:00:30.000000',NULL,NULL,'2026-03-01 12:11:00.000000');
CREATE TABLE summaries (
	id INTEGER NOT NULL, 
	document_id INTEGER NOT NULL, 
	content_hash TEXT NOT NULL, 
	prompt_hash TEXT NOT NULL, 
	model_hash TEXT NOT NULL, 
	prompt TEXT NOT NULL, 
	model TEXT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempt_count BIGINT NOT NULL, 
	batch_id TEXT NOT NULL, 
	job_id TEXT NOT NULL, 
	num_jobs BIGINT NOT NULL, 
	text TEXT, 
	completion_tokens BIGINT, 
	finish_reason TEXT, 
	error_message TEXT, 
	created_at DATETIME NOT NULL, 
	ended_at DATETIME, 
	CONSTRAINT pk_summaries PRIMARY KEY (id), 
	CONSTRAINT fk_summaries_document_id_documents FOREIGN KEY(document_id) REFERENCES documents (id) ON DELETE CASCADE, 
	CONSTRAINT uq_summaries_document_id_content_hash_prompt_hash_model_hash UNIQUE (document_id, content_hash, prompt_hash, model_hash), 
	CONSTRAINT ck_summaries_state CHECK (state IN ('pending', 'done', 'failed'))
);
INSERT INTO "summaries" VALUES(1,1,'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','p1','mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm','{}','smollm2','done',1,'summaries','summary-job',1,'It is what it is.',3,'stop',NULL,'2026-03-01 12:00:00.250000','2026-03-01 12:00:50.250000');
INSERT INTO "summaries" VALUES(2,1,'cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc','p2','mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm','{}','smollm2','pending',1,'summaries','queued',1,NULL,NULL,NULL,NULL,'2026-03-01 12:00:00.250000',NULL);
CREATE TABLE summary_jobs (
	job_id TEXT NOT NULL, 
	summary_id INTEGER NOT NULL, 
	level BIGINT NOT NULL, 
	position BIGINT NOT NULL, 
	CONSTRAINT pk_summary_jobs PRIMARY KEY (job_id), 
	CONSTRAINT fk_summary_jobs_summary_id_summaries FOREIGN KEY(summary_id) REFERENCES summaries (id) ON DELETE CASCADE
);
INSERT INTO "summary_jobs" VALUES('summary-job',1,0,0);
INSERT INTO "summary_jobs" VALUES('queued',2,0,0);
CREATE TABLE worker_hours (
	worker_name TEXT NOT NULL, 
	hour DATETIME NOT NULL, 
	wall_seconds DOUBLE NOT NULL, 
	engine_seconds DOUBLE NOT NULL, 
	wasted_engine_seconds DOUBLE NOT NULL, 
	idle_seconds DOUBLE NOT NULL, 
	loading_seconds DOUBLE NOT NULL, 
	overhead_seconds DOUBLE NOT NULL, 
	kv_block_seconds_held DOUBLE NOT NULL, 
	kv_block_seconds_cached DOUBLE NOT NULL, 
	kv_block_seconds_free DOUBLE NOT NULL, 
	computed_tokens BIGINT NOT NULL, 
	recomputed_tokens BIGINT NOT NULL, 
	CONSTRAINT pk_worker_hours PRIMARY KEY (worker_name, hour), 
	CONSTRAINT fk_worker_hours_worker_name_workers FOREIGN KEY(worker_name) REFERENCES workers (name) ON DELETE CASCADE
);
INSERT INTO "worker_hours" VALUES('w-running','2026-03-01 12:00:00.000000',60.0,20.0,1.0,30.0,5.0,5.0,7.0,8.0,9.0,500,3);
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
	prefix_hit_tokens BIGINT NOT NULL, engine_answered_at DATETIME, price_per_engine_hour DOUBLE, price_currency TEXT, 
	CONSTRAINT pk_workers PRIMARY KEY (name)
);
INSERT INTO "workers" VALUES('w-stopped','host',4711,'smollm2','cpu','float32',16,2048,368640,'0.1.0','2.11.0','5.24.0','2026-03-01 12:00:00.250000','2026-03-01 12:00:00.250000','2026-03-01 12:08:20.250000',0,0,0,0,0,NULL,NULL,NULL);
INSERT INTO "workers" VALUES('w-running','host',4711,'smollm2','cpu','float32',16,2048,368640,'0.1.0','2.11.0','5.24.0','2026-03-01 12:00:05.250000','2026-03-01 12:08:20.250000',NULL,3,2,400,50,160,'2026-03-01 12:08:19.750000',NULL,NULL);
CREATE INDEX ix_jobs_state_queue ON jobs (state, queue);
CREATE INDEX ix_jobs_batch_id ON jobs (batch_id);
CREATE INDEX ix_jobs_ended_at ON jobs (ended_at);
CREATE INDEX ix_jobs_tenant_model ON jobs (tenant, model);
CREATE INDEX ix_jobs_enqueued_at_id ON jobs (enqueued_at, id) WHERE state IN ('queued', 'running');
CREATE INDEX ix_worker_hours_hour ON worker_hours (hour);
CREATE UNIQUE INDEX uq_schedules_name ON schedules (name) WHERE removed_at IS NULL;
CREATE INDEX ix_schedule_runs_firing ON schedule_runs (slot_at) WHERE state = 'firing';
CREATE INDEX ix_summaries_state ON summaries (state);
CREATE INDEX ix_summary_jobs_summary_id ON summary_jobs (summary_id);
CREATE INDEX ix_api_files_tenant_created_at ON api_files (tenant, created_at);
CREATE INDEX ix_batch_files_tenant_created_at ON batch_files (tenant, created_at);
CREATE INDEX ix_hourly_totals_hour ON hourly_totals (hour);
CREATE INDEX ix_hourly_figures_hour ON hourly_figures (hour);
CREATE INDEX ix_hourly_failures_hour ON hourly_failures (hour);
CREATE INDEX ix_hourly_waste_hour ON hourly_waste (hour);
CREATE INDEX ix_hourly_costs_hour ON hourly_costs (hour);
CREATE INDEX ix_figure_histograms_starts_at_metric ON figure_histograms (starts_at, metric);
CREATE INDEX ix_job_stats_e2e_ms ON job_stats (e2e_ms);
CREATE VIEW job_facts AS SELECT
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
LEFT JOIN attempts AS latest ON latest.job_id = jobs.id AND latest.epoch = jobs.epoch;
CREATE VIEW hourly_facts AS SELECT hour, queue, model, tenant, jobs_done, jobs_failed, jobs_cancelled, jobs_dead, jobs_with_retries, attempts,
    prompt_tokens, completion_tokens, preemptions, jobs_with_prefix_figures, jobs_with_hit, prefix_prompt_tokens,
    prefix_hit_tokens, kv_block_seconds, kv_block_seconds_limit, kv_block_seconds_share,
    saved_against_limit_block_seconds, saved_by_sharing_block_seconds
FROM hourly_totals
UNION ALL
SELECT
    strftime('%Y-%m-%d %H:00:00.000000', jobs.ended_at) AS hour,
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
WHERE jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') FROM rolled_hours)
GROUP BY strftime('%Y-%m-%d %H:00:00.000000', jobs.ended_at), jobs.queue, jobs.model, jobs.tenant;
CREATE VIEW hourly_throughput AS SELECT
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
FROM hourly_facts;
CREATE VIEW latency_percentiles AS SELECT
    dimension,
    value,
    metric,
    count(*) AS jobs,
    avg(ms) AS mean_ms,
    min(CASE WHEN rank * 100 >= size * 50 THEN ms END) AS p50_ms,
    min(CASE WHEN rank * 100 >= size * 90 THEN ms END) AS p90_ms,
    min(CASE WHEN rank * 100 >= size * 95 THEN ms END) AS p95_ms,
    min(CASE WHEN rank * 100 >= size * 99 THEN ms END) AS p99_ms,
    max(ms) AS max_ms
FROM (
    SELECT dimension, value, metric, ms,
        row_number() OVER (PARTITION BY dimension, value, metric ORDER BY ms) AS rank,
        count(*) OVER (PARTITION BY dimension, value, metric) AS size
    FROM (
    SELECT 'queue' AS dimension, queue AS value, 'queue_ms' AS metric, queue_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND queue_ms IS NOT NULL
    UNION ALL SELECT 'queue' AS dimension, queue AS value, 'tokenize_ms' AS metric, tokenize_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND tokenize_ms IS NOT NULL
    UNION ALL SELECT 'queue' AS dimension, queue AS value, 'ttft_ms' AS metric, ttft_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND ttft_ms IS NOT NULL
    UNION ALL SELECT 'queue' AS dimension, queue AS value, 'itl_mean_ms' AS metric, itl_mean_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND itl_mean_ms IS NOT NULL
    UNION ALL SELECT 'queue' AS dimension, queue AS value, 'itl_p99_ms' AS metric, itl_p99_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND itl_p99_ms IS NOT NULL
    UNION ALL SELECT 'queue' AS dimension, queue AS value, 'e2e_ms' AS metric, e2e_ms AS ms FROM job_facts WHERE state = 'done' AND queue IS NOT NULL AND e2e_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'queue_ms' AS metric, queue_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND queue_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'tokenize_ms' AS metric, tokenize_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND tokenize_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'ttft_ms' AS metric, ttft_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND ttft_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'itl_mean_ms' AS metric, itl_mean_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND itl_mean_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'itl_p99_ms' AS metric, itl_p99_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND itl_p99_ms IS NOT NULL
    UNION ALL SELECT 'model' AS dimension, model AS value, 'e2e_ms' AS metric, e2e_ms AS ms FROM job_facts WHERE state = 'done' AND model IS NOT NULL AND e2e_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'queue_ms' AS metric, queue_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND queue_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'tokenize_ms' AS metric, tokenize_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND tokenize_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'ttft_ms' AS metric, ttft_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND ttft_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'itl_mean_ms' AS metric, itl_mean_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND itl_mean_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'itl_p99_ms' AS metric, itl_p99_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND itl_p99_ms IS NOT NULL
    UNION ALL SELECT 'tenant' AS dimension, tenant AS value, 'e2e_ms' AS metric, e2e_ms AS ms FROM job_facts WHERE state = 'done' AND tenant IS NOT NULL AND e2e_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'queue_ms' AS metric, queue_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND queue_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'tokenize_ms' AS metric, tokenize_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND tokenize_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'ttft_ms' AS metric, ttft_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND ttft_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'itl_mean_ms' AS metric, itl_mean_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND itl_mean_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'itl_p99_ms' AS metric, itl_p99_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND itl_p99_ms IS NOT NULL
    UNION ALL SELECT 'batch' AS dimension, batch_id AS value, 'e2e_ms' AS metric, e2e_ms AS ms FROM job_facts WHERE state = 'done' AND batch_id IS NOT NULL AND e2e_ms IS NOT NULL
    ) AS figures
) AS ranked
GROUP BY dimension, value, metric;
CREATE VIEW memory_use AS SELECT
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
    WHERE jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') FROM rolled_hours)
) AS parts
GROUP BY queue, model, tenant
HAVING sum(jobs) > 0;
CREATE VIEW prefix_savings AS SELECT
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
GROUP BY queue, model, tenant;
CREATE VIEW failures AS SELECT
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
    WHERE jobs.state IN ('failed', 'dead') AND jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') FROM rolled_hours)
) AS parts
GROUP BY error_code, state, queue, model, tenant;
CREATE VIEW wasted_tokens AS SELECT
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
        WHERE attempts.state <> 'running' AND jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') FROM rolled_hours)
    ) AS ended
    WHERE reason <> 'recomputed' OR recomputed_tokens > 0 OR wasted_engine_seconds > 0
) AS parts
GROUP BY reason, queue, model, tenant;
CREATE VIEW job_costs AS SELECT
    jobs.id AS job_id, jobs.queue, jobs.model, jobs.tenant, jobs.batch_id,
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
GROUP BY jobs.id, jobs.queue, jobs.model, jobs.tenant, jobs.batch_id, workers.price_currency;
CREATE VIEW batch_costs AS SELECT
    jobs.batch_id,
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
GROUP BY jobs.batch_id, workers.price_currency;
CREATE VIEW tenant_costs AS SELECT
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
    WHERE jobs.ended_at >= (SELECT coalesce(strftime('%Y-%m-%d %H:00:00.000000', max(hour), '+1 hour'), '') FROM rolled_hours)
) AS parts
GROUP BY tenant, currency;
CREATE VIEW worker_costs AS SELECT
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
JOIN workers ON workers.name = worker_hours.worker_name;
CREATE VIEW schedule_history AS SELECT
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
JOIN schedules ON schedules.id = schedule_runs.schedule_id;
COMMIT;
