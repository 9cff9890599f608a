"""Roll-ups: what ended in each hour, counted once, so that reports over millions of jobs read thousands of rows.

An hour is rolled up whole, in one transaction, from the rows of its jobs, and again when they changed; its rows are all
replaced. Once jobs of an hour were purged it is final. `worker.sql.rollups` does it.
"""

from datetime import datetime

from sqlalchemy import Boolean, Index, false
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import AutoId, Base


class RolledHourRow(Base):
    """An hour that is rolled up. Every hour is here from the first to the last one, those without jobs too."""

    __tablename__ = "rolled_hours"

    hour: Mapped[datetime] = mapped_column(primary_key=True)  # its start
    jobs: Mapped[int]  # that ended in it, as the roll-up found them
    is_final: Mapped[bool] = mapped_column(Boolean)  # some of its jobs are purged: it cannot be rolled up again
    # What it has of what workers of earlier versions do not count.
    has_histograms: Mapped[bool] = mapped_column(Boolean, server_default=false())  # in `HistogramRow`
    has_batches: Mapped[bool] = mapped_column(Boolean, server_default=false())  # it is rolled up by batch as well
    has_batch_figures: Mapped[bool] = mapped_column(Boolean, server_default=false())  # in `HourlyBatchFigureRow`


class _Hourly:
    """The jobs of a queue, model and tenant that ended in an hour."""

    hour: Mapped[datetime]
    queue: Mapped[str]
    model: Mapped[str | None]
    tenant: Mapped[str | None]


class _Totals(_Hourly):
    """Sums over jobs. `worker.sql.rollups.measures` has them."""

    jobs_done: Mapped[int]
    jobs_failed: Mapped[int]
    jobs_cancelled: Mapped[int]
    jobs_dead: Mapped[int]
    jobs_with_retries: Mapped[int]
    attempts: Mapped[int]
    prompt_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    preemptions: Mapped[int]
    jobs_with_prefix_figures: Mapped[int]
    jobs_with_hit: Mapped[int]
    prefix_prompt_tokens: Mapped[int]
    prefix_hit_tokens: Mapped[int]
    kv_block_seconds: Mapped[float]
    kv_block_seconds_limit: Mapped[float | None]
    kv_block_seconds_share: Mapped[float | None]
    saved_against_limit_block_seconds: Mapped[float | None]
    saved_by_sharing_block_seconds: Mapped[float | None]
    first_claim_at: Mapped[datetime | None]
    last_end_at: Mapped[datetime | None]  # of those that were claimed


class HourlyTotalsRow(_Totals, Base):
    """Sums over the jobs of a queue, model and tenant that ended in an hour. `worker.sql.rollups.measures` has them."""

    __tablename__ = "hourly_totals"
    __table_args__ = (Index(None, "hour"),)

    id: Mapped[AutoId]


class HourlyBatchTotalsRow(_Totals, Base):
    """The same, by batch as well (None is without one)."""

    __tablename__ = "hourly_batch_totals"
    __table_args__ = (Index(None, "hour"), Index(None, "batch_id"))

    id: Mapped[AutoId]
    batch_id: Mapped[str | None]


class HourlyFigureRow(Base):
    """Count, sum and maximum of one latency or memory figure over the jobs that ended in an hour and have it."""

    __tablename__ = "hourly_figures"
    __table_args__ = (Index(None, "hour"),)

    id: Mapped[AutoId]
    hour: Mapped[datetime]
    queue: Mapped[str]
    model: Mapped[str | None]
    tenant: Mapped[str | None]
    metric: Mapped[str]
    jobs: Mapped[int]
    total: Mapped[float]
    largest: Mapped[float]


class HourlyBatchFigureRow(Base):
    """One latency or memory figure over the jobs of a batch (None is without one) that ended in an hour and have it.

    A batch has hundreds of buckets and is read whole, so its histogram is within the row: the buckets, in any order,
    and beside each how many jobs had a figure in it. Queues, models and tenants are not told apart: a histogram of each
    would have about as many buckets as jobs.
    """

    __tablename__ = "hourly_batch_figures"
    __table_args__ = (Index(None, "hour"), Index(None, "batch_id"))

    id: Mapped[AutoId]
    hour: Mapped[datetime]
    batch_id: Mapped[str | None]
    metric: Mapped[str]
    jobs: Mapped[int]
    total: Mapped[float]
    largest: Mapped[float]
    buckets: Mapped[list[int]]  # see worker.sql.rollups.expressions
    bucket_jobs: Mapped[list[int]]


class HistogramRow(Base):
    """How many jobs had a figure in a bucket, in an hour, a day or a week.

    Periods begin at multiples of their length since 1970. Days and weeks are here that are rolled up whole, and the
    hours of the last days: each longer period is the sum of the shorter ones, to be read in their place.
    """

    __tablename__ = "histograms"
    __table_args__ = (Index(None, "seconds", "starts_at", "metric"),)

    id: Mapped[AutoId]
    seconds: Mapped[int]  # the length of the period
    starts_at: Mapped[datetime]
    queue: Mapped[str]
    model: Mapped[str | None]
    tenant: Mapped[str | None]
    metric: Mapped[str]
    bucket: Mapped[int]  # see worker.sql.rollups.expressions
    jobs: Mapped[int]


class EarlierHistogramRow(Base):
    """What workers of versions before `HistogramRow` write while they still run. Nothing reads it."""

    __tablename__ = "figure_histograms"
    __table_args__ = (Index(None, "starts_at", "metric"),)

    id: Mapped[AutoId]
    starts_at: Mapped[datetime]
    queue: Mapped[str]
    model: Mapped[str | None]
    tenant: Mapped[str | None]
    metric: Mapped[str]
    bucket: Mapped[int]
    jobs: Mapped[int]


class _Failures(_Hourly):
    """Jobs that failed or are dead, by error code."""

    state: Mapped[str]
    error_code: Mapped[str]
    jobs: Mapped[int]
    first_at: Mapped[datetime]
    last_at: Mapped[datetime]
    example_message: Mapped[str | None]


class HourlyFailuresRow(_Failures, Base):
    """Jobs that ended in an hour as failed or dead, by error code."""

    __tablename__ = "hourly_failures"
    __table_args__ = (Index(None, "hour"),)

    id: Mapped[AutoId]


class HourlyBatchFailuresRow(_Failures, Base):
    """The same, by batch as well (None is without one)."""

    __tablename__ = "hourly_batch_failures"
    __table_args__ = (Index(None, "hour"), Index(None, "batch_id"))

    id: Mapped[AutoId]
    batch_id: Mapped[str | None]


class _Waste(_Hourly):
    """What jobs had computed for nothing, by reason, over all their attempts."""

    reason: Mapped[str]
    attempts: Mapped[int]
    wasted_tokens: Mapped[int]
    wasted_engine_seconds: Mapped[float]


class HourlyWasteRow(_Waste, Base):
    """What the jobs that ended in an hour had computed for nothing, by reason, over all their attempts."""

    __tablename__ = "hourly_waste"
    __table_args__ = (Index(None, "hour"),)

    id: Mapped[AutoId]


class HourlyBatchWasteRow(_Waste, Base):
    """The same, by batch as well (None is without one)."""

    __tablename__ = "hourly_batch_waste"
    __table_args__ = (Index(None, "hour"), Index(None, "batch_id"))

    id: Mapped[AutoId]
    batch_id: Mapped[str | None]


class _Costs(_Hourly):
    """What jobs cost, over all their attempts, by currency (None is without a price)."""

    currency: Mapped[str | None]
    jobs: Mapped[int]
    attempts: Mapped[int]
    engine_seconds: Mapped[float]
    wasted_engine_seconds: Mapped[float]
    kv_block_seconds_share: Mapped[float]
    cost: Mapped[float | None]


class HourlyCostsRow(_Costs, Base):
    """What the jobs that ended in an hour cost, over all their attempts, by currency (None is without a price)."""

    __tablename__ = "hourly_costs"
    __table_args__ = (Index(None, "hour"),)

    id: Mapped[AutoId]


class HourlyBatchCostsRow(_Costs, Base):
    """The same, by batch as well (None is without one)."""

    __tablename__ = "hourly_batch_costs"
    __table_args__ = (Index(None, "hour"), Index(None, "batch_id"))

    id: Mapped[AutoId]
    batch_id: Mapped[str | None]
