"""Deadlines, back-off and diagnoses of jobs; the health of workers' engines."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("diagnosis", sa.Text(), nullable=True))
        jobs.add_column(sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True))
        jobs.add_column(sa.Column("retry_count", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("workers") as workers:
        workers.add_column(sa.Column("engine_answered_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as workers:
        workers.drop_column("engine_answered_at")
    with op.batch_alter_table("jobs") as jobs:
        for name in ("retry_count", "retry_at", "deadline_at", "diagnosis"):
            jobs.drop_column(name)
