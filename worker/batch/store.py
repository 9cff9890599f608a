"""Batches made of files, in SQL. Each method is one transaction.

A batch moves by itself where only its jobs are to tell: whoever reads it after the last of them has ended writes down
that it has. One that a command writes the output of stays at `finalizing` until that says that it has written all.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, RowMapping, and_, case, delete, func, select, tuple_, update

from worker.batch.records import BatchFile, BatchStatus, LineFault, RequestCounts
from worker.openai_api.fields import Endpoint
from worker.records import TERMINAL_STATES, JobState
from worker.sql.database import reading, upserting, writing
from worker.sql.tables import BatchFaultRow, BatchFileRow, BatchRow, JobRow, utc_now
from worker.sql.unfinished import DEADLINE_EXCEEDED

FAULTS_AT_ONCE = 500
FIELDS = tuple(BatchFile.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class _JobCounts:
    """The jobs of a batch that SQL knows."""

    done: int = 0
    unhappy: int = 0  # they ended otherwise
    expired: int = 0  # of the unhappy
    open: int = 0
    last_end_at: datetime | None = None


class BatchStore:
    """Batches made of files. Every method raises ServiceUnavailable when the database cannot be reached."""

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.engine = engine
        self._clock = clock

    # A batch's life.

    def create(self, batch: BatchFile) -> BatchFile:
        """Write a new batch; where one has its id or its `run_key` already, return that instead."""
        known = BatchFileRow.batch_id == batch.batch_id
        if batch.run_key is not None:
            known |= BatchFileRow.run_key == batch.run_key
        row = {"id": batch.batch_id, "size": None, "created_at": batch.created_at}
        with writing(self.engine) as connection:
            connection.execute(upserting(connection, BatchRow).on_conflict_do_nothing(), [row])
            connection.execute(upserting(connection, BatchFileRow).on_conflict_do_nothing(), [_row(batch)])
            found = _find(connection, known)
        assert found is not None, "it is there, whoever wrote it"
        return found

    def find(self, batch_id: str) -> BatchFile | None:
        """Return the batch as it was written last; see `status` for where its jobs are. None for an unknown one."""
        with reading(self.engine) as connection:
            return _find(connection, BatchFileRow.batch_id == batch_id)

    def by_run_key(self, run_key: str) -> BatchFile | None:
        """Return the batch of an interrupted or completed command, or None."""
        with reading(self.engine) as connection:
            return _find(connection, BatchFileRow.run_key == run_key)

    def forget_run(self, batch_id: str) -> None:
        """Let the next command with the batch's `run_key` make a new one."""
        self._change(batch_id, run_key=None)

    def add_faults(self, batch_id: str, faults: Sequence[LineFault]) -> None:
        """Write lines at fault; those that are there stay."""
        if not faults:
            return
        rows = [
            {name: getattr(fault, name) for name in LineFault.__dataclass_fields__} | {"batch_id": batch_id}
            for fault in faults
        ]
        with writing(self.engine) as connection:
            connection.execute(upserting(connection, BatchFaultRow).on_conflict_do_nothing(), rows)

    def clear_faults(self, batch_id: str) -> None:
        """Forget the lines at fault: all lines are read anew."""
        with writing(self.engine) as connection:
            connection.execute(delete(BatchFaultRow).where(BatchFaultRow.batch_id == batch_id))

    def validated(self, batch_id: str, endpoint: Endpoint | None, num_requests: int, num_faults: int) -> None:
        """Write what came of reading all lines."""
        self._change(batch_id, endpoint=endpoint, num_requests=num_requests, num_faults=num_faults)

    def submitted(self, batch_id: str) -> None:
        """Write that all jobs are there."""
        self._change(batch_id, in_progress_at=self._clock())

    def fail(self, batch_id: str, failure: str) -> None:
        """End a batch of which nothing is run."""
        self._change(batch_id, failed_at=self._clock(), failure=failure, run_key=None)

    def start_cancelling(self, batch_id: str) -> None:
        """Write that the batch is being cancelled; the first such time stays. One that has ended stays as it is."""
        with writing(self.engine) as connection:
            batch = _find(connection, BatchFileRow.batch_id == batch_id)
            if batch is not None and batch.end is None and batch.cancelling_at is None:
                _write(connection, batch_id, {"cancelling_at": self._clock()})

    def is_cancelling(self, batch_id: str) -> bool:
        """Tell whether somebody cancelled the batch."""
        with reading(self.engine) as connection:
            statement = select(BatchFileRow.cancelling_at).where(BatchFileRow.batch_id == batch_id)
            return connection.scalar(statement) is not None

    def written(self, batch_id: str) -> BatchStatus:
        """End the batch, all of whose output is in its file. One that has ended stays as it is."""
        batch = self.find(batch_id)
        if batch is not None and batch.end is not None:
            return self._current(batch)
        return self._settled(batch_id, output_is_written=True)

    def reopen(self, batch_id: str) -> None:
        """Take a batch that ended back to where its jobs run: some of them were queued again."""
        ends = ("finalizing_at", "completed_at", "expired_at", "cancelling_at", "cancelled_at")
        self._change(batch_id, **dict.fromkeys((*ends, "num_completed", "num_failed")))

    # Reading.

    def status(self, batch_id: str) -> BatchStatus | None:
        """Return the batch with its counts, moved on to where its jobs are; None for an unknown one."""
        batch = self.find(batch_id)
        return None if batch is None else self._current(batch)

    def latest(self, limit: int, *, tenant: str | None = None, after: str | None = None) -> list[BatchStatus]:
        """Return batches, the latest first; those behind the batch `after` where that is given."""
        statement = select(BatchFileRow.__table__)
        if tenant is not None:
            statement = statement.where(BatchFileRow.tenant == tenant)
        if after is not None:
            place = select(BatchFileRow.created_at, BatchFileRow.batch_id).where(BatchFileRow.batch_id == after)
            earlier = tuple_(BatchFileRow.created_at, BatchFileRow.batch_id) < place.scalar_subquery()
            statement = statement.where(earlier)
        statement = statement.order_by(BatchFileRow.created_at.desc(), BatchFileRow.batch_id.desc()).limit(limit)
        with reading(self.engine) as connection:
            batches = [_batch(row) for row in connection.execute(statement).mappings()]
        return [self._current(batch) for batch in batches]

    def all_faults(self, batch_id: str) -> Iterator[LineFault]:
        """Yield the lines at fault, in their order."""
        after = 0
        while faults := self.faults(batch_id, after, FAULTS_AT_ONCE):
            yield from faults
            after = faults[-1].line

    def faults(self, batch_id: str, after_line: int, limit: int) -> list[LineFault]:
        """Return the next lines at fault behind a line, in their order."""
        columns = [getattr(BatchFaultRow, name) for name in LineFault.__dataclass_fields__]
        statement = select(*columns).where(BatchFaultRow.batch_id == batch_id, BatchFaultRow.line > after_line)
        with reading(self.engine) as connection:
            rows = connection.execute(statement.order_by(BatchFaultRow.line).limit(limit)).mappings()
            return [LineFault(**row) for row in rows]

    def _current(self, batch: BatchFile) -> BatchStatus:
        """Return the batch with its counts, moved on where its jobs have ended."""
        if batch.end is not None:
            total = batch.num_requests
            failed = batch.num_faults if batch.num_failed is None else batch.num_failed
            return BatchStatus(batch, RequestCounts(total, batch.num_completed or 0, failed))
        with reading(self.engine) as connection:
            jobs = _count_jobs(connection, batch.batch_id)
        is_submitted = batch.in_progress_at is not None or batch.cancelling_at is not None
        if is_submitted and not jobs.open and batch.finalizing_at is None:
            return self._settled(batch.batch_id, output_is_written=False)
        return BatchStatus(batch, _counts(batch, jobs))

    def _settled(self, batch_id: str, *, output_is_written: bool) -> BatchStatus:
        """Write down that all jobs have ended, if they have, and the batch's end, if nothing is left to write."""
        with writing(self.engine) as connection:
            batch = _find(connection, BatchFileRow.batch_id == batch_id)
            assert batch is not None, "a batch is never deleted while it is at work"
            jobs = _count_jobs(connection, batch_id)
            counts = _counts(batch, jobs)
            if jobs.open or batch.end is not None:
                return BatchStatus(batch, counts)
            ended_at = jobs.last_end_at or self._clock()
            change: dict[str, Any] = {"finalizing_at": batch.finalizing_at or ended_at}
            if output_is_written or batch.output_name is None or batch.cancelling_at is not None:
                at = self._clock() if output_is_written else ended_at
                change |= {_end_of(batch, counts): at, "num_completed": counts.completed, "num_failed": counts.failed}
            _write(connection, batch_id, change)
        return BatchStatus(replace(batch, **change), counts)

    def _change(self, batch_id: str, **change: Any) -> None:
        with writing(self.engine) as connection:
            _write(connection, batch_id, change)


def _end_of(batch: BatchFile, counts: RequestCounts) -> str:
    """Return the field that tells when the batch ended as it did."""
    if batch.cancelling_at is not None:
        return "cancelled_at"
    return "expired_at" if counts.expired else "completed_at"


def _count_jobs(connection: Connection, batch_id: str) -> _JobCounts:
    is_done = JobRow.state == JobState.DONE
    has_ended = JobRow.state.in_(TERMINAL_STATES)
    expired = and_(JobRow.state == JobState.FAILED, JobRow.error_code == DEADLINE_EXCEEDED)
    statement = select(
        func.sum(case((is_done, 1), else_=0)).label("done"),
        func.sum(case((and_(has_ended, ~is_done), 1), else_=0)).label("unhappy"),
        func.sum(case((expired, 1), else_=0)).label("expired"),
        func.sum(case((has_ended, 0), else_=1)).label("open"),
        func.max(JobRow.ended_at).label("last_end_at"),
    ).where(JobRow.batch_id == batch_id)
    row = connection.execute(statement).mappings().one()
    numbers = {name: int(row[name] or 0) for name in ("done", "unhappy", "expired", "open")}
    return _JobCounts(**numbers, last_end_at=row["last_end_at"])


def _counts(batch: BatchFile, jobs: _JobCounts) -> RequestCounts:
    return RequestCounts(batch.num_requests, jobs.done, jobs.unhappy + batch.num_faults, jobs.expired)


def _find(connection: Connection, condition: Any) -> BatchFile | None:
    row = connection.execute(select(BatchFileRow.__table__).where(condition)).mappings().one_or_none()
    return None if row is None else _batch(row)


def _write(connection: Connection, batch_id: str, change: dict[str, Any]) -> None:
    connection.execute(update(BatchFileRow).where(BatchFileRow.batch_id == batch_id).values(change))


def _batch(row: RowMapping) -> BatchFile:
    endpoint = None if row["endpoint"] is None else Endpoint(row["endpoint"])
    return BatchFile(
        **{**{name: row[name] for name in FIELDS}, "endpoint": endpoint, "labels": json.loads(row["labels"])}
    )


def _row(batch: BatchFile) -> dict[str, Any]:
    return {**{name: getattr(batch, name) for name in FIELDS}, "labels": json.dumps(dict(batch.labels))}
