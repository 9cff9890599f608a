"""Histograms by the hour, the day and the week, side by side: percentiles of months read weeks, not hours.

The table `figure_histograms` stays as it is, for workers of earlier versions that still run: hours that these roll up
are told by `has_histograms`, and counted again.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
HOURLY = 8 * DAY  # up to here before the day of the last hour that is rolled up, what there is is by the hour
KEYS = ("queue", "model", "tenant", "metric", "bucket")
ZERO = datetime(1970, 1, 1, tzinfo=UTC)

_MOMENT = sa.DateTime(timezone=True)


def _table(name: str, *more: str) -> sa.TableClause:
    whole = [sa.column(column, sa.BigInteger()) for column in ("jobs", *more)]
    return sa.table(name, sa.column("starts_at", _MOMENT), *(sa.column(key) for key in KEYS), *whole)


OLD, NEW = _table("figure_histograms"), _table("histograms", "seconds")
ROLLED = sa.table("rolled_hours", sa.column("hour", _MOMENT), sa.column("has_histograms", sa.Boolean()))


def upgrade() -> None:
    op.add_column("rolled_hours", sa.Column("has_histograms", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(ROLLED.update().values(has_histograms=True))
    _create("histograms", sa.Column("seconds", sa.BigInteger(), nullable=False))
    span = _rolled_span()
    if span is not None:
        _take_over(*span)
    op.create_index(op.f("ix_histograms_seconds_starts_at_metric"), "histograms", ["seconds", "starts_at", "metric"])
    if span is not None:
        first, last = span
        for day in _whole(max(first, _floor(last, DAY) - HOURLY), last, DAY):
            _add_up(HOUR, day, DAY)
        for week in _whole(first, last, WEEK):
            _add_up(DAY, week, WEEK)


def downgrade() -> None:
    """Give the old table what was counted since: days, and the recent ones by the hour."""
    span = _rolled_span()
    if span is not None:
        since = _floor(span[1], DAY) - HOURLY
        known = op.get_bind().scalar(sa.select(sa.func.max(OLD.c.starts_at)))
        for step, asked in ((DAY, NEW.c.starts_at < since), (HOUR, NEW.c.starts_at >= since)):
            is_new = sa.true() if known is None else NEW.c.starts_at > known
            kept = sa.select(*_columns(NEW)).where(NEW.c.seconds == _seconds(step), asked, is_new)
            op.execute(OLD.insert().from_select(_names(), kept))
    op.drop_table("histograms")
    with op.batch_alter_table("rolled_hours") as table:
        table.drop_column("has_histograms")


def _create(name: str, *more: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        *more,
        sa.Column("starts_at", _MOMENT, nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{name}")),
    )


def _take_over(first: datetime, last: datetime) -> None:
    """Copy what there is: recent days by the hour, those before by the day."""
    since = max(first, _floor(last, DAY) - HOURLY)
    length = sa.case((OLD.c.starts_at >= since, _seconds(HOUR)), else_=_seconds(DAY))
    op.execute(NEW.insert().from_select(["seconds", *_names()], sa.select(length, *_columns(OLD))))


def _add_up(part: timedelta, start: datetime, whole: timedelta) -> None:
    keys = [NEW.c[key] for key in KEYS]
    summed = (
        sa.select(
            sa.literal(_seconds(whole), sa.BigInteger()),
            sa.literal(start, _MOMENT),
            *keys,
            sa.cast(sa.func.sum(NEW.c.jobs), sa.BigInteger()),
        )
        .where(NEW.c.seconds == _seconds(part), NEW.c.starts_at >= start, NEW.c.starts_at < start + whole)
        .group_by(*keys)
    )
    op.execute(NEW.insert().from_select(["seconds", *_names()], summed))


def _names() -> list[str]:
    return ["starts_at", *KEYS, "jobs"]


def _columns(table: sa.TableClause) -> list[sa.ColumnElement[Any]]:
    return [table.c[name] for name in _names()]


def _rolled_span() -> tuple[datetime, datetime] | None:
    found = op.get_bind().execute(sa.select(sa.func.min(ROLLED.c.hour), sa.func.max(ROLLED.c.hour))).one()
    if found[0] is None:
        return None
    first, last = (moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment for moment in found)
    return first.astimezone(UTC), last.astimezone(UTC) + HOUR


def _whole(begin: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    start = _floor(begin, step)
    start = start if start == begin else start + step
    while start + step <= end:
        yield start
        start += step


def _floor(moment: datetime, step: timedelta) -> datetime:
    return ZERO + (moment - ZERO) // step * step


def _seconds(length: timedelta) -> int:
    return int(length.total_seconds())
