"""The first tables: jobs, attempts, results, job_stats, batches, workers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    _create_jobs()
    _create_attempts()
    _create_results()
    _create_job_stats()
    _create_workers()


def downgrade() -> None:
    for table in ("workers", "job_stats", "results", "attempts", "jobs", "batches"):
        op.drop_table(table)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempt_count", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("enqueued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled', 'dead')", name=op.f("ck_jobs_state")
        ),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_jobs_epoch")),
        sa.CheckConstraint("attempt_count >= 0", name=op.f("ck_jobs_attempt_count")),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], name=op.f("fk_jobs_batch_id_batches")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_state_queue"), "jobs", ["state", "queue"])
    op.create_index(op.f("ix_jobs_batch_id"), "jobs", ["batch_id"])
    op.create_index(op.f("ix_jobs_ended_at"), "jobs", ["ended_at"])
    op.create_index(op.f("ix_jobs_tenant_model"), "jobs", ["tenant", "model"])


def _create_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("worker_name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'done', 'failed', 'cancelled', 'requeued', 'lost')", name=op.f("ck_attempts_state")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
        sa.UniqueConstraint("job_id", "epoch", name=op.f("uq_attempts_job_id_epoch")),
    )


def _create_results() -> None:
    op.create_table(
        "results",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_results_job_id_jobs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempts.id"], name=op.f("fk_results_attempt_id_attempts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_results")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_results_attempt_id")),
    )


def _create_job_stats() -> None:
    op.create_table(
        "job_stats",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("queue_ms", sa.Double(), nullable=False),
        sa.Column("tokenize_ms", sa.Double(), nullable=False),
        sa.Column("ttft_ms", sa.Double(), nullable=True),
        sa.Column("itl_mean_ms", sa.Double(), nullable=True),
        sa.Column("itl_p99_ms", sa.Double(), nullable=True),
        sa.Column("e2e_ms", sa.Double(), nullable=False),
        sa.Column("kv_blocks_peak", sa.BigInteger(), nullable=False),
        sa.Column("kv_bytes_peak", sa.BigInteger(), nullable=False),
        sa.Column("kv_block_seconds", sa.Double(), nullable=False),
        sa.Column("prefix_hit_tokens", sa.BigInteger(), nullable=False),
        sa.Column("preemptions", sa.BigInteger(), nullable=False),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_stats_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_stats")),
    )


def _create_workers() -> None:
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("block_size", sa.BigInteger(), nullable=False),
        sa.Column("num_blocks", sa.BigInteger(), nullable=False),
        sa.Column("bytes_per_block", sa.BigInteger(), nullable=False),
        sa.Column("pagemill_version", sa.Text(), nullable=False),
        sa.Column("torch_version", sa.Text(), nullable=False),
        sa.Column("transformers_version", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heartbeat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("stopped_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("jobs_done", sa.BigInteger(), nullable=False),
        sa.Column("jobs_failed", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("prefix_hit_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_workers")),
    )
