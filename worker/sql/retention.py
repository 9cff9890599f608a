"""Purging: jobs that ended long ago are deleted, or lose their texts, a few at a time.

What they counted for stays: an hour is rolled up before its first job goes, and is final from then on. Jobs that have
not ended are never touched.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, delete, exists, func, or_, select, update

from worker.sql.database import reading, writing
from worker.sql.lookups import IDS_PER_STATEMENT
from worker.sql.rollups.periods import hour_start
from worker.sql.rollups.rolling import Roller, rolled_span, take_rollup_lock
from worker.sql.run_retention import count_old_runs, delete_old_runs, delete_removed_schedules
from worker.sql.tables import BatchRow, ChoiceRow, JobRow, ResultRow, RolledHourRow

PURGED_PAYLOAD = '{"texts": "purged"}'  # of a job whose texts are gone
REST_SHARE = 1.0  # of the time that a chunk took, for others who want to write
NEVER = datetime.min.replace(tzinfo=UTC)  # where no hour is rolled up yet, no job may go


@dataclass(frozen=True, slots=True)
class PurgeScope:
    """Which jobs are purged: those that ended before `before` (UTC), of one batch or tenant where that is named."""

    before: datetime
    batch: str | None = None
    tenant: str | None = None
    texts_only: bool = False  # prompts and outputs go; the jobs, their attempts and figures stay
    since: datetime | None = None  # those that ended earlier are known to be purged: they are not looked at

    @property
    def has_runs(self) -> bool:
        """Whether runs of schedules go too: they are of no batch or tenant, and have no texts."""
        return self.batch is None and self.tenant is None and not self.texts_only


@dataclass(frozen=True, slots=True)
class Purged:
    """What was purged, or would be."""

    jobs: int
    batches: int  # that had no jobs left
    too_recent: int  # jobs that fit, but ended in an hour that cannot be rolled up yet: they stay
    runs: int = 0  # of schedules


class Purger:
    """Purges jobs of one database."""

    def __init__(self, engine: Engine, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """`sleep` takes seconds: between two chunks others may write."""
        self._engine = engine
        self._sleep = sleep

    def count(self, scope: PurgeScope, rolled_until: datetime | None) -> Purged:
        """Return what a purge would do, once all before `rolled_until` is rolled up. Raises ServiceUnavailable."""
        with reading(self._engine) as connection:
            before = scope.before if rolled_until is None else min(scope.before, rolled_until)
            jobs = _count(connection, scope, JobRow.ended_at < before)
            recent = _count(connection, scope, JobRow.ended_at >= before) if not scope.texts_only else 0
            runs = count_old_runs(connection, scope.before) if scope.has_runs else 0
        return Purged(jobs, 0, recent, runs)

    def run(
        self,
        scope: PurgeScope,
        *,
        told: Callable[[int], None] = lambda jobs: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Purged:
        """Purge, in transactions of a few hundred jobs. `told` hears how many are purged so far; `stopped` ends it.

        Raises ServiceUnavailable; what was purged by then is.
        """
        if scope.texts_only:
            return Purged(self._in_chunks(scope, scope.before, told, stopped), 0, 0)
        Roller(self._engine).run(stopped=stopped)
        with reading(self._engine) as connection:
            span = rolled_span(connection)
        before = NEVER if span is None else min(scope.before, span[1])
        jobs = self._in_chunks(scope, before, told, stopped)
        with writing(self._engine) as connection:
            batches = _delete_empty_batches(connection, before)
            recent = _count(connection, scope, JobRow.ended_at >= before)
        runs = self.run_schedules(scope.before, stopped=stopped) if scope.has_runs else 0
        return Purged(jobs, batches, recent, runs)

    def run_schedules(self, before: datetime, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Purge the runs of schedules whose slots were before `before` (UTC); return how many. Raises as `run`."""
        purged = 0
        while not stopped():
            with writing(self._engine) as connection:
                chunk = delete_old_runs(connection, before)
                if not chunk:
                    delete_removed_schedules(connection, before)
                    break
            purged += chunk
        return purged

    def _in_chunks(
        self, scope: PurgeScope, before: datetime, told: Callable[[int], None], stopped: Callable[[], bool]
    ) -> int:
        purged = 0
        last: tuple[datetime, str] | None = None
        while not stopped():
            started = time.monotonic()
            with writing(self._engine) as connection:
                take_rollup_lock(connection)
                rows = connection.execute(_next_jobs(scope, before, last))
                chunk = [(job_id, ended_at) for job_id, ended_at in rows if ended_at is not None]
                if scope.texts_only:
                    _drop_texts(connection, [job_id for job_id, _ in chunk])
                else:
                    _delete_jobs(connection, dict(chunk))
            if not chunk:
                break
            job_id, ended_at = chunk[-1]
            last = (ended_at, job_id)
            purged += len(chunk)
            told(purged)
            self._sleep(REST_SHARE * (time.monotonic() - started))
        return purged


def _conditions(scope: PurgeScope) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [JobRow.ended_at < scope.before]
    if scope.since is not None:
        conditions.append(JobRow.ended_at >= scope.since)
    if scope.batch is not None:
        conditions.append(JobRow.batch_id == scope.batch)
    if scope.tenant is not None:
        conditions.append(JobRow.tenant == scope.tenant)
    if scope.texts_only:
        conditions.append(JobRow.payload != PURGED_PAYLOAD)
    return conditions


def _count(connection: Connection, scope: PurgeScope, also: ColumnElement[bool]) -> int:
    return connection.scalar(select(func.count()).select_from(JobRow).where(*_conditions(scope), also)) or 0


def _next_jobs(scope: PurgeScope, before: datetime, last: tuple[datetime, str] | None) -> Select[str, datetime | None]:
    conditions = [*_conditions(scope), JobRow.ended_at < before]
    if last is not None:
        ended_at, job_id = last
        behind = and_(JobRow.ended_at == ended_at, JobRow.id > job_id)
        conditions += [JobRow.ended_at >= ended_at, or_(JobRow.ended_at > ended_at, behind)]
    jobs = select(JobRow.id, JobRow.ended_at).where(*conditions)
    return jobs.order_by(JobRow.ended_at, JobRow.id).limit(IDS_PER_STATEMENT)


def _delete_jobs(connection: Connection, ended: Mapping[str, datetime]) -> None:
    """Delete jobs with their attempts, results and figures, those aside that somebody has just queued again; what is
    counted of their hours is final.
    """
    hours = sorted({hour_start(moment) for moment in ended.values()})
    connection.execute(update(RolledHourRow).where(RolledHourRow.hour.in_(hours)).values(is_final=True))
    connection.execute(delete(JobRow).where(JobRow.id.in_(ended), JobRow.ended_at.is_not(None)))


def _drop_texts(connection: Connection, job_ids: list[str]) -> None:
    ended = update(JobRow).where(JobRow.id.in_(job_ids), JobRow.ended_at.is_not(None))
    dropped = ended.values(payload=PURGED_PAYLOAD, diagnosis=None).returning(JobRow.id)
    still_ended = connection.scalars(dropped).all()
    no_text: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": None}
    no_prompt: dict[str, Any] = {"prompt_logprobs": None, "prompt_token_ids": None}
    connection.execute(update(ResultRow).where(ResultRow.job_id.in_(still_ended)).values(no_text | no_prompt))
    connection.execute(update(ChoiceRow).where(ChoiceRow.job_id.in_(still_ended)).values(no_text))


def _delete_empty_batches(connection: Connection, before: datetime) -> int:
    has_jobs = exists().where(JobRow.batch_id == BatchRow.id)
    return connection.execute(delete(BatchRow).where(BatchRow.created_at < before, ~has_jobs)).rowcount
