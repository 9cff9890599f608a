"""What type a worker's KV cache has, and what it copied to its host's memory and back."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

COUNTS = ("kv_host_blocks", "kv_blocks_out", "kv_blocks_back")


def upgrade() -> None:
    op.add_column("workers", sa.Column("kv_dtype", sa.Text(), nullable=True))
    for name in COUNTS:
        op.add_column("workers", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as workers:
        for name in ("kv_dtype", *COUNTS):
            workers.drop_column(name)
