"""By what `best_of` chose: the mean log-probability of each output that was kept."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLES = ("results", "choices")


def upgrade() -> None:
    for name in TABLES:
        op.add_column(name, sa.Column("mean_logprob", sa.Double(), nullable=True))


def downgrade() -> None:
    for name in TABLES:
        with op.batch_alter_table(name) as table:
            table.drop_column("mean_logprob")
