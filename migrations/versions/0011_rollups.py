"""Roll-ups by the hour, and histograms of latency and memory figures."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
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
    op.create_table(
        "rolled_hours",
        _moment("hour"),
        _whole("jobs"),
        sa.Column("is_final", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_rolled_hours")),
    )
    _create_rollup(
        "hourly_totals",
        *(_whole(name) for name in TOTALS),
        _real("kv_block_seconds"),
        *(_real(name, nullable=True) for name in KNOWN_SINCE),
        _moment("first_claim_at", nullable=True),
        _moment("last_end_at", nullable=True),
    )
    _create_rollup("hourly_figures", _text("metric"), _whole("jobs"), _real("total"), _real("largest"))
    _create_rollup(
        "hourly_failures",
        _text("state"),
        _text("error_code"),
        _whole("jobs"),
        _moment("first_at"),
        _moment("last_at"),
        _text("example_message", nullable=True),
    )
    _create_rollup(
        "hourly_waste", _text("reason"), _whole("attempts"), _whole("wasted_tokens"), _real("wasted_engine_seconds")
    )
    _create_rollup(
        "hourly_costs",
        _text("currency", nullable=True),
        _whole("jobs"),
        _whole("attempts"),
        _real("engine_seconds"),
        _real("wasted_engine_seconds"),
        _real("kv_block_seconds_share"),
        _real("cost", nullable=True),
    )
    _create_rollup(
        "figure_histograms", _text("metric"), _whole("bucket"), _whole("jobs"), period="starts_at", and_index="metric"
    )


def downgrade() -> None:
    for kind in ("costs", "waste", "failures", "figures", "totals"):
        op.drop_table(f"hourly_{kind}")
    op.drop_table("figure_histograms")
    op.drop_table("rolled_hours")


def _create_rollup(name: str, *columns: sa.Column[Any], period: str = "hour", and_index: str = "") -> None:
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        _moment(period),
        _text("queue"),
        _text("model", nullable=True),
        _text("tenant", nullable=True),
        *columns,
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{name}")),
    )
    indexed = [column for column in (period, and_index) if column]
    op.create_index(op.f(f"ix_{name}_{'_'.join(indexed)}"), name, indexed)


def _moment(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _whole(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _real(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)
