"""The job store: every write and read of a job's life in SQL, each method one transaction."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Engine

from worker.inputs import InputEnd
from worker.records import Claim, DeadRecord, JobState, Outcome
from worker.sql import (
    attempt_ends,
    attempts,
    balance,
    dead_letters,
    fleet,
    job_changes,
    lookups,
    outbox,
    summaries,
    unfinished,
    worker_hours,
)
from worker.sql.attempts import BegunAttempts
from worker.sql.balance import WorkerBalance
from worker.sql.database import reading, writing
from worker.sql.dead_letters import DeadFilter, DeadJob
from worker.sql.fleet import WorkerCounters, WorkerDetail, WorkerRecord
from worker.sql.job_changes import SubmittedJob
from worker.sql.lookups import BatchProgress, JobDetail, JobResult, StateCount
from worker.sql.outbox import OutboxPage, OutboxStatus
from worker.sql.summaries import Collected
from worker.sql.tables import utc_now
from worker.sql.unfinished import UnfinishedJob, UnfinishedJobs
from worker.sql.worker_hours import AccountEntry, WorkerHour


class JobStore:
    """Jobs, attempts, results and workers in one database. Safe to use from several threads.

    Every method raises ServiceUnavailable when the database cannot be reached or stays locked, and is then safe to call
    again with the same arguments: nothing, or all of it, was written.
    """

    def __init__(self, engine: Engine, *, clock: Callable[[], datetime] = utc_now) -> None:
        """`clock` gives the UTC time of what happens here: dead-lettering, cancelling a waiting job, heartbeats."""
        self._engine = engine
        self._clock = clock

    @property
    def database(self) -> Engine:
        """The database, for stores of what is no job."""
        return self._engine

    # The life of a job that is claimed.

    def begin_attempts(self, claims: Sequence[Claim], worker_name: str) -> BegunAttempts:
        """Write the claimed jobs as running, with an attempt each; say which began none. See `attempts.begin`."""
        with writing(self._engine) as connection:
            return attempts.begin(connection, claims, worker_name)

    def finish_attempts(self, outcomes: Sequence[Outcome], account: AccountEntry | None = None) -> frozenset[str]:
        """Write the attempts' ends, with the account of their worker so far; return the ids of jobs that were fenced.
        See `attempt_ends.finish`.

        Call it only after `begin_attempts` returned for the same claims: an attempt that never began is fenced.
        """
        with writing(self._engine) as connection:
            fenced = attempt_ends.finish(connection, outcomes)
            if account is not None:
                worker_hours.write_hours(connection, account)
            return fenced

    # Jobs outside an attempt.

    def record_dead(self, records: Sequence[DeadRecord]) -> None:
        """Dead-letter the records. See `job_changes.add_dead`."""
        with writing(self._engine) as connection:
            job_changes.add_dead(connection, records, self._clock())

    def record_cancelled(self, jobs: Sequence[SubmittedJob]) -> frozenset[str]:
        """Cancel jobs that wait; return the ids of those that are cancelled. See `job_changes.add_cancelled`."""
        with writing(self._engine) as connection:
            return job_changes.add_cancelled(connection, jobs, self._clock())

    def cancel_queued(self, job_ids: Iterable[str]) -> frozenset[str]:
        """Cancel the jobs that SQL has as queued; return their ids. See `job_changes.cancel_queued`."""
        with writing(self._engine) as connection:
            return job_changes.cancel_queued(connection, job_ids, self._clock())

    def cancel_unheld(self, job_ids: Iterable[str]) -> None:
        """Cancel jobs that no worker holds. See `job_changes.cancel_unheld`."""
        with writing(self._engine) as connection:
            job_changes.cancel_unheld(connection, job_ids, self._clock())

    def mark_retried(self, job_ids: Iterable[str]) -> frozenset[str]:
        """Put ended jobs back to queued; return the ids of those that were. See `job_changes.requeue_ended`."""
        with writing(self._engine) as connection:
            return job_changes.requeue_ended(connection, job_ids)

    # Jobs that have not ended, for reconciling the queue.

    def count_unfinished(self) -> UnfinishedJobs:
        """Count the jobs that wait or run."""
        with reading(self._engine) as connection:
            return unfinished.count_unfinished(connection)

    def unfinished(self, after: UnfinishedJob | None, until: datetime, limit: int) -> tuple[UnfinishedJob, ...]:
        """Return the next page of jobs that wait or run. See `unfinished.find_unfinished`."""
        with reading(self._engine) as connection:
            return unfinished.find_unfinished(connection, after, until, limit)

    def requeue_lost(self, jobs: Sequence[UnfinishedJob]) -> frozenset[str]:
        """Put jobs whose workers are gone back to queued. See `unfinished.requeue_lost`."""
        if not jobs:
            return frozenset()
        with writing(self._engine) as connection:
            return unfinished.requeue_lost(connection, jobs, self._clock())

    def expire_lost(self, jobs: Sequence[UnfinishedJob]) -> frozenset[str]:
        """End jobs whose deadline has passed. See `unfinished.expire_lost`."""
        if not jobs:
            return frozenset()
        with writing(self._engine) as connection:
            return unfinished.expire_lost(connection, jobs, self._clock())

    def cancel_lost(self, jobs: Sequence[UnfinishedJob]) -> frozenset[str]:
        """End jobs that Redis has as cancelled. See `unfinished.cancel_lost`."""
        if not jobs:
            return frozenset()
        with writing(self._engine) as connection:
            return unfinished.cancel_lost(connection, jobs, self._clock())

    def purge_dead(self, job_ids: Iterable[str]) -> frozenset[str]:
        """Delete dead jobs for good; return the ids of those that were dead."""
        with writing(self._engine) as connection:
            return dead_letters.delete_dead(connection, job_ids)

    # The outbox.

    def take_outbox(self, limit: int) -> OutboxPage:
        """Record the outbox's next rows as jobs, or dead-letter them. See `outbox.take`."""
        with reading(self._engine) as connection:  # mostly there are none, and a look takes no lock
            if not outbox.has_rows(connection, self._clock()):
                return OutboxPage((), ())
        with writing(self._engine) as connection:
            return outbox.take(connection, limit, self._clock())

    def clear_outbox(self, row_ids: Iterable[int]) -> None:
        """Delete rows of the outbox whose jobs Redis has."""
        with writing(self._engine) as connection:
            outbox.clear(connection, row_ids)

    def outbox_status(self) -> OutboxStatus:
        """Count what is in the outbox."""
        with reading(self._engine) as connection:
            return outbox.count(connection)

    # Summaries of documents.

    def collect_summaries(self) -> Collected:
        """End pending summaries whose jobs have ended; some hundreds in a call, so call it until it returns none."""
        with reading(self._engine) as connection:  # mostly there is nothing to write, and nobody to hold up
            ends = summaries.find_ends(connection)
        if not ends:
            return Collected()
        with writing(self._engine) as connection:
            return summaries.write_ends(connection, ends, self._clock())

    # Workers.

    def register_worker(self, record: WorkerRecord) -> None:
        """Write that a worker started; one of the same name is started anew."""
        with writing(self._engine) as connection:
            fleet.add_worker(connection, record)

    def heartbeat_worker(
        self, name: str, counters: WorkerCounters, engine_age: timedelta, hours: tuple[WorkerHour, ...] = ()
    ) -> None:
        """Write that the worker is alive, how long ago its engine was, its counters, and its account of these hours."""
        with writing(self._engine) as connection:
            fleet.beat_worker(connection, name, counters, engine_age, hours, self._clock())

    def stop_worker(self, name: str) -> None:
        """Write that the worker stopped; the first such time stays."""
        with writing(self._engine) as connection:
            fleet.end_worker(connection, name, self._clock())

    def workers(self) -> tuple[WorkerDetail, ...]:
        """Return every worker, the latest to start first."""
        with reading(self._engine) as connection:
            return fleet.find_workers(connection)

    def worker_hours(self, name: str) -> tuple[WorkerHour, ...]:
        """Return a worker's account of its time, in the order of its hours."""
        with reading(self._engine) as connection:
            return worker_hours.find_hours(connection, name)

    def balances(self, since: datetime | None = None) -> tuple[WorkerBalance, ...]:
        """Return each worker's account beside what its attempts were charged. See `balance.find_balances`."""
        with reading(self._engine) as connection:
            return balance.find_balances(connection, since)

    def worker_records(self, names: Iterable[str]) -> tuple[WorkerRecord, ...]:
        """Return what these workers said of themselves, in the order of their names; unknown ones are left out."""
        with reading(self._engine) as connection:
            return fleet.find_records(connection, names)

    # Reading.

    def job(self, job_id: str) -> JobDetail | None:
        """Return the job with its attempts, result and figures, or None."""
        with reading(self._engine) as connection:
            return lookups.find_job(connection, job_id)

    def dead_jobs(self, wanted: DeadFilter) -> tuple[DeadJob, ...]:
        """Return the dead jobs that fit, the latest first."""
        with reading(self._engine) as connection:
            return dead_letters.find_dead(connection, wanted)

    def states(self, job_ids: Iterable[str]) -> Mapping[str, JobState]:
        """Return the state of each job that SQL has seen."""
        with reading(self._engine) as connection:
            return lookups.find_states(connection, job_ids)

    def input_ends(self, job_ids: Iterable[str]) -> Mapping[str, InputEnd]:
        """Return how each job that SQL has seen stands, as an input of others."""
        with reading(self._engine) as connection:
            return lookups.find_input_ends(connection, job_ids)

    def results(self, job_ids: Iterable[str]) -> Mapping[str, JobResult]:
        """Return the result of each job that has one."""
        with reading(self._engine) as connection:
            return lookups.find_results(connection, job_ids)

    def state_counts(self) -> tuple[StateCount, ...]:
        """Return the number of jobs by queue and state."""
        with reading(self._engine) as connection:
            return lookups.count_states(connection)

    def unfinished_jobs(self, batch_id: str, after_id: str, limit: int) -> Sequence[str]:
        """Return the ids of a batch's jobs that have not ended, in their order, the first `limit` behind `after_id`."""
        with reading(self._engine) as connection:
            return lookups.find_unfinished(connection, batch_id, after_id, limit)

    def batch(self, batch_id: str) -> BatchProgress | None:
        """Return the batch's progress, or None."""
        with reading(self._engine) as connection:
            return lookups.find_batch(connection, batch_id)
