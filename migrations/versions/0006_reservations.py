"""What reserving KV blocks up to the limit would have taken, for each job."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job_stats", sa.Column("kv_blocks_limit", sa.BigInteger(), nullable=True))
    op.add_column("job_stats", sa.Column("kv_block_seconds_limit", sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("job_stats") as job_stats:
        job_stats.drop_column("kv_block_seconds_limit")
        job_stats.drop_column("kv_blocks_limit")
