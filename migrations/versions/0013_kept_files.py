"""When the service's files expire, and how a collection is indexed again."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_files", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("collections", sa.Column("source_options", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("collections") as collections:
        collections.drop_column("source_options")
    with op.batch_alter_table("api_files") as api_files:
        api_files.drop_column("expires_at")
