"""How long a sequence a worker's KV cache has room for: where layers have windows, its blocks alone do not tell."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("longest_sequence", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("workers") as workers:
        workers.drop_column("longest_sequence")
