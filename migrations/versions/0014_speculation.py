"""How many tokens speculation drafted for a job, and how many of them became output."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COLUMNS = ("drafted_tokens", "accepted_tokens")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("job_stats", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job_stats") as job_stats:
        for name in COLUMNS:
            job_stats.drop_column(name)
