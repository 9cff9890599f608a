"""Deadlines, back-off and diagnoses of jobs; an index of those that have not ended; the health of workers' engines."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UNFINISHED = "state IN ('queued', 'running')"


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("diagnosis", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("retry_count", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index(
        op.f("ix_jobs_enqueued_at_id"),
        "jobs",
        ["enqueued_at", "id"],
        sqlite_where=sa.text(UNFINISHED),
        postgresql_where=sa.text(UNFINISHED),
    )
    with op.batch_alter_table("workers") as workers:
        workers.add_column(sa.Column("engine_answered_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as workers:
        workers.drop_column("engine_answered_at")
    op.drop_index(op.f("ix_jobs_enqueued_at_id"), table_name="jobs")
    with op.batch_alter_table("jobs") as jobs:
        for name in ("retry_count", "retry_at", "deadline_at", "diagnosis"):
            jobs.drop_column(name)
