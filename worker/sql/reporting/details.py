"""Reports that are no sums over jobs: their span, the slowest ones, runs of schedules, workers' hours."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, func, select

from worker.records import JobState
from worker.sql.reporting.filters import Dimension, Grouping, ReportFilter, group_labels, group_values, order_key
from worker.sql.reporting.parts import divide, is_purged, job_conditions, only_rows, span_conditions
from worker.sql.reporting.rows import ScheduleRun, SlowJob, WorkerTimeRow
from worker.sql.rollups.expressions import SECONDS_PER_HOUR
from worker.sql.rollups.periods import hour_start
from worker.sql.rollups.sources import TOTALS
from worker.sql.tables import (
    AttemptRow,
    HourlyTotalsRow,
    JobRow,
    JobStatsRow,
    ResultRow,
    ScheduleRow,
    ScheduleRunRow,
    WorkerHourRow,
    WorkerRow,
)

_FACTS = ("state", "error_code", "queue", "tenant", "model", "batch_id", "custom_id", "ended_at")
_PHASES = ("tokenized_ms", "admitted_ms", "first_token_ms", "last_token_ms", "committed_ms")


def span(connection: Connection, chosen: ReportFilter) -> tuple[datetime, datetime] | None:
    """Return when the first and the last of the jobs ended, None where none has.

    To the hour where an answer from rows would have to look for them, or where they are purged.
    """
    parts = only_rows(chosen) if chosen.batch is not None else divide(connection, TOTALS, chosen, ())
    if not chosen.dimensions and not is_purged(connection, parts):
        parts = only_rows(chosen)
    found: list[datetime | None] = []
    for ended in parts.rows:
        conditions = [*span_conditions(ended), *job_conditions(chosen)]
        ends = select(func.min(JobRow.ended_at), func.max(JobRow.ended_at)).where(*conditions)
        found += connection.execute(ends).one()
    for hourly in parts.rolled:
        hours = HourlyTotalsRow.__table__.c
        asked = [hours[name] == value for name, value in chosen.dimensions.items()]
        rolled = select(func.min(hours.hour), func.max(func.coalesce(hours.last_end_at, hours.hour)))
        found += connection.execute(rolled.where(hours.hour >= hourly.begin, hours.hour < hourly.end, *asked)).one()
    moments = [moment for moment in found if moment is not None]
    return (min(moments), max(moments)) if moments else None


def slowest(connection: Connection, chosen: ReportFilter, limit: int) -> tuple[SlowJob, ...]:
    """Return the jobs that took longest, with their phases."""
    asked = [*span_conditions((chosen.since, chosen.until)), *job_conditions(chosen)]
    jobs = _phases().where(*asked).order_by(JobStatsRow.e2e_ms.desc(), JobRow.id).limit(limit)
    return tuple(SlowJob(**row) for row in connection.execute(jobs).mappings())


def one_job(connection: Connection, job_id: str) -> SlowJob | None:
    """Return a job that has ended with figures, or None."""
    row = connection.execute(_phases().where(JobRow.id == job_id)).mappings().one_or_none()
    return None if row is None else SlowJob(**row)


def _phases() -> Select[Any]:
    latest = and_(AttemptRow.job_id == JobRow.id, AttemptRow.epoch == JobRow.epoch)
    return (
        select(
            JobRow.id.label("job_id"),
            *(JobRow.__table__.c[name] for name in _FACTS),
            JobRow.attempt_count.label("attempts"),
            AttemptRow.worker_name,
            ResultRow.prompt_tokens,
            ResultRow.completion_tokens,
            JobStatsRow.prefix_hit_tokens,
            JobStatsRow.queue_ms,
            *(AttemptRow.__table__.c[name] for name in _PHASES),
            JobStatsRow.e2e_ms,
        )
        .select_from(JobRow)
        .join(JobStatsRow, JobStatsRow.job_id == JobRow.id)
        .outerjoin(ResultRow, ResultRow.job_id == JobRow.id)
        .outerjoin(AttemptRow, latest)
    )


def schedule_runs(connection: Connection, chosen: ReportFilter) -> tuple[ScheduleRun, ...]:
    """Return the runs of schedules whose slots are from `since` and before `until`, the latest first."""
    asked = [] if chosen.since is None else [ScheduleRunRow.slot_at >= chosen.since]
    if chosen.until is not None:
        asked.append(ScheduleRunRow.slot_at < chosen.until)
    of_batch = select(func.count()).where(JobRow.batch_id == ScheduleRunRow.batch_id)
    runs = (
        select(
            ScheduleRow.name.label("schedule"),
            ScheduleRunRow.kind,
            ScheduleRunRow.slot_at,
            ScheduleRunRow.num_slots.label("slots"),
            ScheduleRunRow.state,
            ScheduleRunRow.skip_reason,
            ScheduleRunRow.message,
            ScheduleRunRow.batch_id,
            ScheduleRunRow.num_submitted.label("jobs"),
            of_batch.where(JobRow.state == JobState.DONE).scalar_subquery().label("jobs_done"),
            of_batch.where(JobRow.state.in_([JobState.FAILED, JobState.DEAD])).scalar_subquery().label("jobs_failed"),
            select(func.max(JobRow.ended_at))
            .where(JobRow.batch_id == ScheduleRunRow.batch_id)
            .scalar_subquery()
            .label("last_job_ended_at"),
        )
        .join(ScheduleRow, ScheduleRow.id == ScheduleRunRow.schedule_id)
        .where(*asked)
        .order_by(ScheduleRunRow.slot_at.desc(), ScheduleRow.name)
    )
    return tuple(ScheduleRun(**row) for row in connection.execute(runs).mappings())


def worker_time(connection: Connection, chosen: ReportFilter, by: Grouping) -> tuple[WorkerTimeRow, ...]:
    """Return where the time of the workers' hours went, those that `since` and `until` touch."""
    columns = {"model": WorkerRow.model}
    unknown = {each.value for each in by if isinstance(each, Dimension)} - {"model", "hour", "day"}
    if unknown:
        raise ValueError(f"a worker's time has no {', '.join(sorted(unknown))}")
    groups = group_labels(by, columns, WorkerHourRow.hour)
    sums = ("wall", "engine", "wasted_engine", "idle", "loading", "overhead")
    hours = WorkerHourRow.__table__.c
    price = WorkerRow.price_per_engine_hour / SECONDS_PER_HOUR
    held, cached = hours.kv_block_seconds_held, hours.kv_block_seconds_cached
    cache = func.nullif(func.sum(held + cached + hours.kv_block_seconds_free), 0)
    asked = [] if chosen.since is None else [WorkerHourRow.hour >= hour_start(chosen.since)]
    if chosen.until is not None:
        asked.append(WorkerHourRow.hour < chosen.until)
    if chosen.model is not None:
        asked.append(WorkerRow.model == chosen.model)
    statement = (
        select(
            *groups,
            WorkerRow.price_currency.label("currency"),
            *(func.sum(hours[f"{name}_seconds"]).label(f"{name}_seconds") for name in sums),
            (func.sum(held) / cache).label("kv_held_share"),
            (func.sum(cached) / cache).label("kv_cached_share"),
            func.sum(hours.wall_seconds * price).label("cost"),
            func.sum(hours.idle_seconds * price).label("idle_cost"),
        )
        .join_from(WorkerHourRow, WorkerRow, WorkerRow.name == WorkerHourRow.worker_name)
        .where(*asked)
        .group_by(*groups, WorkerRow.price_currency)
    )
    names = [name for name in WorkerTimeRow.__dataclass_fields__ if name != "group"]
    found = [
        WorkerTimeRow(group_values(by, row), **{name: row[name] for name in names})
        for row in connection.execute(statement).mappings()
    ]
    return tuple(sorted(found, key=lambda row: (order_key(row.group), row.currency or "")))
