"""Schedules, their runs, and which scheduler leads."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_schedules()
    _create_schedule_runs()
    op.create_table(
        "leaders",
        sa.Column("duty", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("duty", name=op.f("pk_leaders")),
    )


def downgrade() -> None:
    for table in ("leaders", "schedule_runs", "schedules"):
        op.drop_table(table)


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("time_zone", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("missed", sa.String(16), nullable=False),
        sa.Column("overlap", sa.String(16), nullable=False),
        sa.Column("grace_seconds", sa.Double(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_slot_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("missed IN ('once', 'skip')", name=op.f("ck_schedules_missed")),
        sa.CheckConstraint("overlap IN ('skip', 'allow')", name=op.f("ck_schedules_overlap")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    present = sa.text("removed_at IS NULL")
    op.create_index(
        op.f("uq_schedules_name"), "schedules", ["name"], unique=True, sqlite_where=present, postgresql_where=present
    )


def _create_schedule_runs() -> None:
    op.create_table(
        "schedule_runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("schedule_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("slot_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_slot_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("num_slots", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("skip_reason", sa.String(16), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("batch_id", sa.Text(), nullable=True),
        sa.Column("source_digest", sa.Text(), nullable=True),
        sa.Column("num_jobs", sa.BigInteger(), nullable=True),
        sa.Column("num_submitted", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("num_failures", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('slot', 'manual')", name=op.f("ck_schedule_runs_kind")),
        sa.CheckConstraint(
            "state IN ('firing', 'submitted', 'skipped', 'failed')", name=op.f("ck_schedule_runs_state")
        ),
        sa.CheckConstraint("skip_reason IN ('missed', 'overlap', 'paused')", name=op.f("ck_schedule_runs_skip_reason")),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_schedule_runs_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint("schedule_id", "kind", "slot_at", name=op.f("uq_schedule_runs_schedule_id_kind_slot_at")),
    )
    firing = sa.text("state = 'firing'")
    op.create_index(
        op.f("ix_schedule_runs_firing"), "schedule_runs", ["slot_at"], sqlite_where=firing, postgresql_where=firing
    )
