"""The outbox: jobs that apps submit within their own transactions."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

RANDOM_ID = {
    "sqlite": "(lower(hex(randomblob(16))))",
    "postgresql": "replace(gen_random_uuid()::text, '-', '')",
}


def upgrade() -> None:
    dialect = op.get_bind().dialect.name
    op.create_table(
        "pagemill_outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.Text(), server_default=sa.text(RANDOM_ID[dialect]), nullable=False),
        sa.Column("queue", sa.Text(), server_default="default", nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("CURRENT_TIMESTAMP"), nullable=False
        ),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pagemill_outbox")),
    )


def downgrade() -> None:
    op.drop_table("pagemill_outbox")
