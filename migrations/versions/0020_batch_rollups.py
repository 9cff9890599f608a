"""Sums of hours by batch as well: reports by batch over months need not read every job.

Hours that are rolled up already have none. They are counted again, by workers and by `pagemill db rollup --all`.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TOTALS = (
    "jobs_done",
    "jobs_failed",
    "jobs_cancelled",
    "jobs_dead",
    "jobs_with_retries",
    "attempts",
    "prompt_tokens",
    "completion_tokens",
    "preemptions",
    "jobs_with_prefix_figures",
    "jobs_with_hit",
    "prefix_prompt_tokens",
    "prefix_hit_tokens",
)
KNOWN_SINCE = (  # of jobs whose workers wrote them
    "kv_block_seconds_limit",
    "kv_block_seconds_share",
    "saved_against_limit_block_seconds",
    "saved_by_sharing_block_seconds",
)


def upgrade() -> None:
    op.add_column("rolled_hours", sa.Column("has_batches", sa.Boolean(), server_default=sa.false(), nullable=False))
    _create(
        "totals",
        *(_whole(name) for name in TOTALS),
        _real("kv_block_seconds"),
        *(_real(name, nullable=True) for name in KNOWN_SINCE),
        _moment("first_claim_at", nullable=True),
        _moment("last_end_at", nullable=True),
    )
    _create(
        "failures",
        _text("state"),
        _text("error_code"),
        _whole("jobs"),
        _moment("first_at"),
        _moment("last_at"),
        _text("example_message", nullable=True),
    )
    _create("waste", _text("reason"), _whole("attempts"), _whole("wasted_tokens"), _real("wasted_engine_seconds"))
    _create(
        "costs",
        _text("currency", nullable=True),
        _whole("jobs"),
        _whole("attempts"),
        _real("engine_seconds"),
        _real("wasted_engine_seconds"),
        _real("kv_block_seconds_share"),
        _real("cost", nullable=True),
    )


def downgrade() -> None:
    for kind in ("costs", "waste", "failures", "totals"):
        op.drop_table(f"hourly_batch_{kind}")
    with op.batch_alter_table("rolled_hours") as table:
        table.drop_column("has_batches")


def _create(kind: str, *columns: sa.Column[Any]) -> None:
    name = f"hourly_batch_{kind}"
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        _moment("hour"),
        _text("queue"),
        _text("model", nullable=True),
        _text("tenant", nullable=True),
        _text("batch_id", nullable=True),
        *columns,
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{name}")),
    )
    for column in ("hour", "batch_id"):
        op.create_index(op.f(f"ix_{name}_{column}"), name, [column])


def _moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _whole(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _real(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)
