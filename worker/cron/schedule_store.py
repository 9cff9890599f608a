"""Schedules in SQL: what people do to them, and the step from a slot that is due to its run."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime

from sqlalchemy import Connection, Engine, select, update
from sqlalchemy import exists as there_is

from worker.cron.actions import batch_name, run_id
from worker.cron.leader import Leadership
from worker.cron.planning import Plan, SlotRange, pass_over
from worker.cron.records import OverlapPolicy, Run, RunKind, RunState, Schedule, SkipReason
from worker.cron.run_store import CLAIM
from worker.errors import PagemillError
from worker.records import JobState
from worker.sql.database import reading, upserting, writing
from worker.sql.tables import JobRow, ScheduleRow, ScheduleRunRow

IS_PRESENT = ScheduleRow.removed_at.is_(None)
IS_ACTIVE = IS_PRESENT & ScheduleRow.paused_at.is_(None) & ScheduleRow.next_slot_at.is_not(None)
LATEST_RUNS = 10  # of each kind, looked at for jobs that have not ended


class ScheduleStore:
    """Every method is one transaction, and raises ServiceUnavailable when the database cannot be reached.

    Times are UTC, of the clock that all schedulers share.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database

    def add(self, schedule: Schedule) -> None:
        """Write a new schedule. Raises PagemillError when its name is taken."""
        with writing(self._database) as connection:
            taken = connection.execute(select(ScheduleRow.id).where(IS_PRESENT, ScheduleRow.name == schedule.name))
            statement = upserting(connection, ScheduleRow).on_conflict_do_nothing()
            if taken.first() or not connection.execute(statement, asdict(schedule)).rowcount:
                raise PagemillError(f"name: there is a schedule {schedule.name} already; `pagemill cron rm` removes it")

    def find(self, name: str) -> Schedule:
        """Return the schedule of a name. Raises PagemillError when there is none."""
        with reading(self._database) as connection:
            return _find(connection, name)

    def schedules(self, *, removed: bool = False) -> tuple[Schedule, ...]:
        """Return the schedules by name, with `removed` those that are no more as well."""
        statement = select(ScheduleRow.__table__).order_by(ScheduleRow.name, ScheduleRow.created_at)
        with reading(self._database) as connection:
            rows = connection.execute(statement if removed else statement.where(IS_PRESENT)).mappings()
            return tuple(Schedule(**row) for row in rows)

    def pause(self, name: str, now: datetime) -> None:
        """Let no slot of a schedule fire until it is resumed. Raises as `find`."""
        with writing(self._database) as connection:
            schedule = _find(connection, name)
            if schedule.paused_at is None:
                _change(connection, schedule, paused_at=now)

    def resume(self, name: str, now: datetime) -> Schedule:
        """Let the slots from now on fire; those of the pause are recorded as skipped. Raises as `find`."""
        with writing(self._database) as connection:
            schedule = _find(connection, name)
            if schedule.paused_at is None:
                return schedule
            passed = pass_over(schedule, now)
            _change(connection, schedule, paused_at=None, next_slot_at=passed.next_slot_at)
            if passed.missed is not None:
                _insert(
                    connection, _skipped(schedule, passed.missed, SkipReason.PAUSED, "the schedule was paused", now)
                )
            return replace(schedule, paused_at=None, next_slot_at=passed.next_slot_at)

    def remove(self, name: str, now: datetime) -> None:
        """Let a schedule fire no more; its history stays. Raises as `find`."""
        with writing(self._database) as connection:
            _change(connection, _find(connection, name), removed_at=now)

    def any_active(self) -> bool:
        """Tell whether any schedule may ever fire again, or has a run whose jobs are being submitted."""
        with reading(self._database) as connection:
            firing = ScheduleRunRow.state == RunState.FIRING
            return bool(connection.scalar(select(there_is().where(IS_ACTIVE) | there_is().where(firing))))

    def due(self, now: datetime) -> tuple[Schedule, ...]:
        """Return the schedules that have slots to settle, the longest due first."""
        statement = select(ScheduleRow.__table__).where(IS_ACTIVE, ScheduleRow.next_slot_at <= now)
        with reading(self._database) as connection:
            rows = connection.execute(statement.order_by(ScheduleRow.next_slot_at)).mappings()
            return tuple(Schedule(**row) for row in rows)

    def open_runs(self, schedule: Schedule, plan: Plan, now: datetime, leadership: Leadership) -> tuple[Run, ...]:
        """Write the runs of a plan and move the schedule on, if it is as it was read. Returns the runs, the skipped
        ones among them. Raises NotLeader."""
        with writing(self._database) as connection:
            leadership.fence(connection, now)
            as_read = IS_ACTIVE & (ScheduleRow.id == schedule.id) & (ScheduleRow.next_slot_at == schedule.next_slot_at)
            moved = update(ScheduleRow).where(as_read).values(next_slot_at=plan.next_slot_at)
            if not connection.execute(moved).rowcount:
                return ()
            runs = [_missed(schedule, plan.missed, now)] if plan.missed is not None else []
            _insert(connection, *runs)
            for slot in plan.fire:  # each in its turn: the first may be what the second overlaps
                run = _open(schedule, RunKind.SLOT, slot, now)
                if schedule.overlap is OverlapPolicy.SKIP and (what := _unfinished(connection, schedule.id)):
                    run = _skipped(schedule, SlotRange(slot, slot, 1), SkipReason.OVERLAP, what, now)
                _insert(connection, run)
                runs.append(run)
            return tuple(runs)

    def open_manual(self, schedule: Schedule, holder: str, now: datetime) -> Run:
        """Write a run that `holder` asks for and has claimed, as `RunStore.claim` does."""
        run = _open(schedule, RunKind.MANUAL, now, now)
        run = replace(run, epoch=1, claimed_by=holder, claimed_until=now + CLAIM)
        with writing(self._database) as connection:
            _insert(connection, run)
        return run


def _find(connection: Connection, name: str) -> Schedule:
    statement = select(ScheduleRow.__table__).where(IS_PRESENT, ScheduleRow.name == name)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise PagemillError(f"name: there is no schedule {name!a}; `pagemill cron ls` lists them")
    return Schedule(**row)


def _change(connection: Connection, schedule: Schedule, **values: datetime | None) -> None:
    connection.execute(update(ScheduleRow).where(ScheduleRow.id == schedule.id).values(**values))


def _insert(connection: Connection, *runs: Run) -> None:
    if runs:
        statement = upserting(connection, ScheduleRunRow).on_conflict_do_nothing()
        connection.execute(statement, [asdict(run) for run in runs])


def _unfinished(connection: Connection, schedule_id: str) -> str | None:
    """Return what of the schedule's earlier runs has not ended, for people; None where all has."""
    of_schedule = ScheduleRunRow.schedule_id == schedule_id
    firing = select(ScheduleRunRow.slot_at).where(of_schedule, ScheduleRunRow.state == RunState.FIRING)
    slot = connection.scalar(firing.limit(1))
    if slot is not None:
        return f"the run of {slot:%Y-%m-%d %H:%M} UTC is still being submitted"
    for batch_id in _latest_batches(connection, schedule_id):
        is_open = (JobRow.batch_id == batch_id) & JobRow.state.in_((JobState.QUEUED, JobState.RUNNING))
        if connection.scalar(select(there_is().where(is_open))):
            return f"jobs of batch {batch_id} have not ended"
    return None


def _latest_batches(connection: Connection, schedule_id: str) -> Sequence[str]:
    """Return the batches of the schedule's latest runs. Older ones have ended, or later slots would not have fired."""
    batches: list[str] = []
    for kind in RunKind:
        of_kind = (ScheduleRunRow.schedule_id == schedule_id) & (ScheduleRunRow.kind == kind)
        submitted = of_kind & (ScheduleRunRow.state == RunState.SUBMITTED) & ScheduleRunRow.batch_id.is_not(None)
        statement = select(ScheduleRunRow.batch_id).where(submitted).order_by(ScheduleRunRow.slot_at.desc())
        batches += filter(None, connection.scalars(statement.limit(LATEST_RUNS)))
    return batches


def _open(schedule: Schedule, kind: RunKind, slot_at: datetime, now: datetime) -> Run:
    return Run(
        id=run_id(schedule.id, kind, slot_at),
        schedule_id=schedule.id,
        kind=kind,
        slot_at=slot_at,
        last_slot_at=slot_at,
        num_slots=1,
        state=RunState.FIRING,
        skip_reason=None,
        message=None,
        batch_id=batch_name(schedule.name, kind, slot_at),
        source_digest=None,
        num_jobs=None,
        num_submitted=0,
        epoch=0,
        num_failures=0,
        retry_at=None,
        claimed_by=None,
        claimed_until=None,
        opened_at=now,
        ended_at=None,
    )


def _skipped(schedule: Schedule, slots: SlotRange, reason: SkipReason, message: str, now: datetime) -> Run:
    return replace(
        _open(schedule, RunKind.SLOT, slots.first, now),
        last_slot_at=slots.last,
        num_slots=slots.number,
        state=RunState.SKIPPED,
        skip_reason=reason,
        message=message,
        batch_id=None,
        ended_at=now,
    )


def _missed(schedule: Schedule, slots: SlotRange, now: datetime) -> Run:
    message = f"no scheduler ran within {schedule.grace_seconds:g} s of it"
    return _skipped(schedule, slots, SkipReason.MISSED, message, now)
