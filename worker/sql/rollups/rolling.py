"""Rolling up: the hours that are over are counted, and counted again when their jobs changed.

A round takes a day (UTC) at a time or, of a backlog, thirty days, in a transaction each, and leaves off where it is
told to. It may run again at any time and anywhere: what is rolled up already stays, and of two processes one waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Label, Row, Select, delete, func, insert, select, text, update

from worker.sql.database import reading, writing
from worker.sql.rollups.expressions import hour_of
from worker.sql.rollups.histograms import HOURLY_FOR, count_histograms
from worker.sql.rollups.periods import DAY, HOUR, day_start, hour_start, in_steps, starts_in
from worker.sql.rollups.sources import BATCH_FIGURES, COSTS, FAILURES, FIGURES, TOTALS, WASTE, Conditions, Source
from worker.sql.tables import JobRow, RolledHourRow, utc_now

GRACE = timedelta(minutes=10)  # after an hour, for results that are committed late
BACKLOG_STEP = timedelta(days=30)  # of days whose histograms are by the day: fewer read tables whole more often
RECENT = timedelta(days=2)  # hours that every round looks at again
ROLLUP_LOCK = 0x9A6E_3112  # PostgreSQL's advisory lock: one transaction that rolls up or purges at a time
WORK_MEMORY = "128MB"  # for a sort or a hash table of PostgreSQL's: its default is for many small queries at once
HOURLY = (TOTALS, FIGURES, FAILURES, WASTE, COSTS)
DIMENSIONS = ("queue", "model", "tenant")
BATCH_FIGURES_COUNTED = "has_batch_figures"
HAS = ("has_histograms", "has_batches", BATCH_FIGURES_COUNTED)  # of an hour, once this version has rolled it up


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a round did: hours that it counted, and jobs in them; hours among them that it had counted before."""

    hours: int
    jobs: int
    hours_again: int


def rolled_end(now: datetime) -> datetime:
    """Return up to when a round rolls up at `now`."""
    return hour_start(now - GRACE)


def take_rollup_lock(connection: Connection) -> None:
    """Keep others from rolling up and purging until the transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ROLLUP_LOCK})


def rolled_span(connection: Connection) -> tuple[datetime, datetime] | None:
    """Return the start of the first hour that is rolled up and the end of the last; None before the first round."""
    first = connection.scalar(select(func.min(RolledHourRow.hour)))
    last = connection.scalar(select(func.max(RolledHourRow.hour)))
    return None if first is None or last is None else (first, last + HOUR)


@dataclass(frozen=True, slots=True)
class _Due:
    """What a round has to do. Spans are within a day each, but for those of a backlog, which are of whole days."""

    spans: Sequence[tuple[datetime, datetime]]
    new_from: datetime  # the spans from here on were not rolled up yet
    by_day_before: datetime  # histograms of days before are by the day


class Roller:
    """Rolls up one database."""

    def __init__(self, engine: Engine, *, now: Callable[[], datetime] = utc_now) -> None:
        """`now` gives the time, UTC."""
        self._engine = engine
        self._now = now

    def run(
        self,
        *,
        check_all: bool = False,
        told: Callable[[int, int], None] = lambda done, total: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Rolled:
        """Count the hours that are over and those whose jobs changed since they were counted.

        The latter are looked for in the last two days, or everywhere with `check_all` and at the first round of a day.
        `told` hears how many days are done with, of how many; `stopped` ends the round early, after a day. Raises
        ServiceUnavailable.
        """
        due = self._due(check_all)
        hours = jobs = again = 0
        for number, (start, end) in enumerate(due.spans, 1):
            if stopped():
                break
            with writing(self._engine) as connection:
                take_rollup_lock(connection)
                known = _count_rolled(connection, start, end)
                if start >= due.new_from and known == (end - start) // HOUR:
                    continue  # another process was faster
                jobs += roll_up(connection, start, end, due.by_day_before)
            again += known
            hours += (end - start) // HOUR
            told(number, len(due.spans))
        return Rolled(hours, jobs, again)

    def _due(self, check_all: bool) -> _Due:
        until = rolled_end(self._now())
        by_day_before = day_start(until) - HOURLY_FOR
        with reading(self._engine) as connection:
            span = rolled_span(connection)
            earliest = connection.scalar(select(func.min(JobRow.ended_at)))
            if span is None:
                begin = until if earliest is None else day_start(earliest)
                return _Due(self._new_spans(begin, until, by_day_before), begin, by_day_before)
            first, begin = span
            is_new_day = day_start(begin) < day_start(until)
            changed = _changed_days(connection, None if check_all or is_new_day else until - RECENT, begin)
        again = [(max(day, first), min(day + DAY, begin)) for day in changed]
        if earliest is not None and earliest < first:  # committed late, or its clock was wrong
            again += reversed(list(in_steps(day_start(earliest), first, DAY)))  # no gap where the round is stopped
        return _Due([*again, *self._new_spans(begin, until, by_day_before)], begin, by_day_before)

    def _new_spans(self, begin: datetime, until: datetime, by_day_before: datetime) -> list[tuple[datetime, datetime]]:
        """Return the spans to roll up for the first time. PostgreSQL reads a backlog faster in one go than by day."""
        backlog_end = max(begin, min(by_day_before, until))
        step = BACKLOG_STEP if self._engine.dialect.name == "postgresql" else DAY
        return [*in_steps(begin, backlog_end, step), *in_steps(backlog_end, until, DAY)]


def roll_up(connection: Connection, start: datetime, end: datetime, by_day_before: datetime) -> int:
    """Count the hours from `start` to `end` in the caller's transaction. Return their jobs.

    What was counted of them before is replaced, unless some of their jobs are purged: then nothing is done. Days before
    `by_day_before` have no histograms by the hour. A span of more than one day begins and ends at midnight, UTC.
    """
    hours = (RolledHourRow.hour >= start, RolledHourRow.hour < end)
    known = connection.execute(select(RolledHourRow.__table__).where(*hours)).all()
    if any(row.is_final for row in known):
        return 0
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL work_mem = '{WORK_MEMORY}'"))
        connection.execute(text("SET LOCAL jit = off"))  # it would compile for longer than the hours of a day take
    ended = (JobRow.ended_at >= start, JobRow.ended_at < end)
    jobs = _jobs_by_hour(connection, ended)  # before the sums: what is committed in between is found to be missing
    if len(known) == (end - start) // HOUR and all(_lacks(row, jobs) == {BATCH_FIGURES_COUNTED} for row in known):
        _roll_up_batch_figures(connection, start, end)
        connection.execute(update(RolledHourRow).where(*hours).values({BATCH_FIGURES_COUNTED: True}))
        return sum(jobs.values())
    connection.execute(delete(RolledHourRow).where(*hours))
    for source in HOURLY:
        _roll_up_hours(connection, source, start, end)
    _roll_up_batch_figures(connection, start, end)
    has: dict[str, Any] = dict.fromkeys(HAS, True)
    rows = [{"hour": hour, "jobs": jobs.get(hour, 0), "is_final": False, **has} for hour in starts_in(start, end, HOUR)]
    connection.execute(insert(RolledHourRow), rows)
    count_histograms(connection, start, end, ended, by_day_before)
    return sum(jobs.values())


def _roll_up_hours(connection: Connection, source: Source, start: datetime, end: datetime) -> None:
    """Count the jobs: by batch first, where batches are kept, and then without them from that."""
    ended = (JobRow.ended_at >= start, JobRow.ended_at < end)
    groups: list[Label[Any]] = [hour_of(JobRow.ended_at).label("hour"), *_labels(JobRow.__table__.c, DIMENSIONS)]
    by_batch = source.by_batch()
    if by_batch is None:
        _replace(connection, source, start, end, source.from_rows(groups, ended))
        return
    counted = source.from_rows([*groups, JobRow.batch_id.label("batch_id")], ended)
    _replace(connection, by_batch, start, end, counted)
    columns = by_batch.table.__table__.c
    hours = (columns.hour >= start, columns.hour < end)
    added_up = by_batch.from_rollup(_labels(columns, ("hour", *DIMENSIONS)), hours)
    _replace(connection, source, start, end, added_up)


def _roll_up_batch_figures(connection: Connection, start: datetime, end: datetime) -> None:
    groups: list[Label[Any]] = [hour_of(JobRow.ended_at).label("hour"), JobRow.batch_id.label("batch_id")]
    counted = BATCH_FIGURES.from_rows(groups, (JobRow.ended_at >= start, JobRow.ended_at < end))
    _replace(connection, BATCH_FIGURES, start, end, counted)


def _replace(connection: Connection, source: Source, start: datetime, end: datetime, counted: Select[Any]) -> None:
    columns = source.table.__table__.c
    connection.execute(delete(source.table).where(columns.hour >= start, columns.hour < end))
    connection.execute(insert(source.table).from_select([column.name for column in counted.selected_columns], counted))


def _labels(columns: Any, names: Sequence[str]) -> list[Label[Any]]:
    return [columns[name].label(name) for name in names]


def _changed_days(connection: Connection, since: datetime | None, until: datetime) -> Sequence[datetime]:
    """Return the days that can be counted again, with hours that have more or fewer jobs than were counted, or that a
    worker of an earlier version counted.
    """
    ended = [JobRow.ended_at < until, *([JobRow.ended_at >= since] if since is not None else [])]
    rolled = [RolledHourRow.hour < until, *([RolledHourRow.hour >= since] if since is not None else [])]
    found = _jobs_by_hour(connection, ended)
    known = connection.execute(select(RolledHourRow.__table__).where(*rolled)).all()
    final = {day_start(row.hour) for row in known if row.is_final}
    changed = {day_start(row.hour) for row in known if _lacks(row, found)}
    return sorted(changed - final)


def _lacks(row: Row[Any], jobs: Mapping[datetime, int]) -> set[str]:
    """Return what an hour lacks that is rolled up, by columns of `RolledHourRow`; `jobs` is how many ended by hour."""
    lacking = {name for name in HAS if not getattr(row, name)}
    return lacking if row.jobs == jobs.get(row.hour, 0) else {*lacking, "jobs"}


def _jobs_by_hour(connection: Connection, ended: Conditions) -> dict[datetime, int]:
    hour = hour_of(JobRow.ended_at).label("hour")
    counts = connection.execute(select(hour, func.count().label("jobs")).where(*ended).group_by(hour))
    return {row.hour: row.jobs for row in counts}


def _count_rolled(connection: Connection, start: datetime, end: datetime) -> int:
    hours = select(func.count()).where(RolledHourRow.hour >= start, RolledHourRow.hour < end)
    return connection.scalar(hours) or 0
