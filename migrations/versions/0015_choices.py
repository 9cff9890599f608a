"""Further outputs of jobs with several; what is known of their prompts' tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "choices",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("choice_index", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("logprobs", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["results.job_id"], name="fk_choices_job_id_results", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "choice_index", name="pk_choices"),
    )

    op.add_column("results", sa.Column("prompt_logprobs", sa.JSON(), nullable=True))
    op.add_column("results", sa.Column("prompt_token_ids", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("results") as results:
        results.drop_column("prompt_token_ids")
        results.drop_column("prompt_logprobs")
    op.drop_table("choices")
