"""What attempts cost and when they came how far; the workers' time by the hour, and its price."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ATTEMPT_COLUMNS = {
    "engine_seconds": sa.Double,
    "wasted_engine_seconds": sa.Double,
    "kv_block_seconds_share": sa.Double,
    "computed_tokens": sa.BigInteger,
    "recomputed_tokens": sa.BigInteger,
    "tokenized_ms": sa.Double,
    "admitted_ms": sa.Double,
    "first_token_ms": sa.Double,
    "last_token_ms": sa.Double,
    "committed_ms": sa.Double,
}
WORKER_COLUMNS = {"price_per_engine_hour": sa.Double, "price_currency": sa.Text}


def upgrade() -> None:
    for name, kind in ATTEMPT_COLUMNS.items():
        op.add_column("attempts", sa.Column(name, kind(), nullable=True))
    for name, kind in WORKER_COLUMNS.items():
        op.add_column("workers", sa.Column(name, kind(), nullable=True))
    op.create_table(
        "worker_hours",
        sa.Column("worker_name", sa.Text(), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("wall_seconds", sa.Double(), nullable=False),
        sa.Column("engine_seconds", sa.Double(), nullable=False),
        sa.Column("wasted_engine_seconds", sa.Double(), nullable=False),
        sa.Column("idle_seconds", sa.Double(), nullable=False),
        sa.Column("loading_seconds", sa.Double(), nullable=False),
        sa.Column("overhead_seconds", sa.Double(), nullable=False),
        sa.Column("kv_block_seconds_held", sa.Double(), nullable=False),
        sa.Column("kv_block_seconds_cached", sa.Double(), nullable=False),
        sa.Column("kv_block_seconds_free", sa.Double(), nullable=False),
        sa.Column("computed_tokens", sa.BigInteger(), nullable=False),
        sa.Column("recomputed_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_name"], ["workers.name"], name=op.f("fk_worker_hours_worker_name_workers"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_name", "hour", name=op.f("pk_worker_hours")),
    )
    op.create_index(op.f("ix_worker_hours_hour"), "worker_hours", ["hour"])


def downgrade() -> None:
    op.drop_index(op.f("ix_worker_hours_hour"), table_name="worker_hours")
    op.drop_table("worker_hours")
    with op.batch_alter_table("workers") as workers:
        for name in WORKER_COLUMNS:
            workers.drop_column(name)
    with op.batch_alter_table("attempts") as attempts:
        for name in ATTEMPT_COLUMNS:
            attempts.drop_column(name)
