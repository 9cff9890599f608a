"""Batches made of files of requests, and the lines at fault in these."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

MOMENTS = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def upgrade() -> None:
    op.create_table(
        "batch_files",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("run_key", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=True),
        sa.Column("input_name", sa.Text(), nullable=False),
        sa.Column("output_name", sa.Text(), nullable=True),
        sa.Column("num_requests", sa.BigInteger(), nullable=True),
        sa.Column("num_faults", sa.BigInteger(), nullable=False),
        sa.Column("num_completed", sa.BigInteger(), nullable=True),
        sa.Column("num_failed", sa.BigInteger(), nullable=True),
        sa.Column("window_seconds", sa.BigInteger(), nullable=True),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        *(sa.Column(name, sa.DateTime(timezone=True), nullable=True) for name in MOMENTS),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_files_batch_id_batches"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("pk_batch_files")),
        sa.UniqueConstraint("run_key", name=op.f("uq_batch_files_run_key")),
    )
    op.create_index(op.f("ix_batch_files_tenant_created_at"), "batch_files", ["tenant", "created_at"])
    op.create_table(
        "batch_faults",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("param", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"],
            ["batch_files.batch_id"],
            name=op.f("fk_batch_faults_batch_id_batch_files"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_faults")),
    )


def downgrade() -> None:
    op.drop_table("batch_faults")
    op.drop_table("batch_files")
