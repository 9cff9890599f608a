"""What SQL has of jobs and their attempts, and what it refused to begin."""

from collections.abc import Mapping

from worker.records import AttemptState, JobState
from worker.sql.attempts import BegunAttempts
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

Refused = tuple[Mapping[str, JobState], frozenset[str]]

NONE_REFUSED: Refused = ({}, frozenset())


def refused(attempts: BegunAttempts) -> Refused:
    """Return what was not begun: jobs that had ended, with their states, and stale claims' jobs."""
    return attempts.terminal, attempts.stale


def job_of(store: JobStore, job_id: str) -> JobDetail:
    """Return all that SQL has of a job."""
    job = store.job(job_id)
    assert job is not None
    return job


def attempt_states(store: JobStore, job_id: str) -> list[AttemptState]:
    """Return the states of a job's attempts, the first one's first."""
    return [attempt.state for attempt in job_of(store, job_id).attempts]
