"""Latency and memory figures of hours by batch, with their histograms: these reports need not read every job either.

Hours that are rolled up already have none. They are counted again, by workers and by `pagemill db rollup --all`.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

TABLE = "hourly_batch_figures"


def upgrade() -> None:
    op.add_column(
        "rolled_hours", sa.Column("has_batch_figures", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.create_table(
        TABLE,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("largest", sa.Double(), nullable=False),
        sa.Column("buckets", sa.JSON(), nullable=False),
        sa.Column("bucket_jobs", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{TABLE}")),
    )
    for column in ("hour", "batch_id"):
        op.create_index(op.f(f"ix_{TABLE}_{column}"), TABLE, [column])


def downgrade() -> None:
    op.drop_table(TABLE)
    with op.batch_alter_table("rolled_hours") as table:
        table.drop_column("has_batch_figures")
