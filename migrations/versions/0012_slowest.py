"""An index of jobs by how long they took: the slowest of millions are found at once."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_job_stats_e2e_ms"), "job_stats", ["e2e_ms"])


def downgrade() -> None:
    op.drop_index(op.f("ix_job_stats_e2e_ms"), table_name="job_stats")
