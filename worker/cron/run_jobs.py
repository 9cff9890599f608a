"""From a run to its jobs, whose ids and fields are the same however often this is asked."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from worker.cron.actions import JsonlAction, PromptAction, check_line, job_id
from worker.cron.records import Run, Schedule
from worker.errors import InvalidJob, PagemillError
from worker.job_files import JobFields, ReadJobs, check_jobs, new_jobs, opened_jsonl
from worker.queue.submission import NewJob, valid_payload

Tick = Callable[[int], None]  # hears how many jobs were checked


@dataclass(frozen=True, slots=True)
class RunJobs:
    """What a run submits. `jobs` are those that it has not submitted yet, read as they are taken."""

    jobs: Iterator[NewJob]
    num_jobs: int  # all of the run
    source_digest: str | None


@contextmanager
def jobs_of_prompt(run: Run, schedule: Schedule, action: PromptAction) -> Iterator[RunJobs]:
    """Give the one job of a prompt. Raises InvalidJob for one that a later version of Pagemill refuses."""
    payload = valid_payload({**action.job, **_settled(run, schedule, action.deadline_seconds), "batch_size": 1})
    yield RunJobs(iter([NewJob(job_id(run.id, 0), payload)]), 1, None)


@contextmanager
def jobs_of_file(run: Run, schedule: Schedule, action: JsonlAction, tick: Tick) -> Iterator[RunJobs]:
    """Give the jobs of a file, all of them checked. Memory is that of a line.

    Raises PagemillError for a file that cannot be read, holds nothing or a fault, or is another than the one of which
    the run has submitted a part.
    """
    digest = unchanged_digest(run, action.path)
    defaults = {**action.defaults, **_settled(run, schedule, action.deadline_seconds)}
    with opened_jsonl(action.path) as read:
        num_jobs = check_jobs(_checked(read), defaults, tick)
        if not num_jobs:
            raise InvalidJob(action.path, "holds no jobs")
        jobs = (
            NewJob(job_id(run.id, index), job.payload) for index, job in enumerate(new_jobs(read, defaults, num_jobs))
        )
        yield RunJobs(islice(jobs, run.num_submitted, None), num_jobs, digest)


def unchanged_digest(run: Run, path: str) -> str:
    """Return the digest of a file. Raises PagemillError for one that cannot be read, or is another than the one of
    which the run has submitted a part."""
    digest = _digest(path)
    if run.source_digest not in (None, digest):
        raise PagemillError(
            f"{path} was changed while it was being submitted: {run.num_submitted} of {run.num_jobs} jobs are in the "
            "queue; `pagemill cron run` submits the file as it is now"
        )
    return digest


def _settled(run: Run, schedule: Schedule, deadline_seconds: float | None) -> dict[str, Any]:
    """Return the fields of a job that schedule and run settle."""
    fields: dict[str, Any] = {"tenant": schedule.tenant, "batch_id": run.batch_id}
    if deadline_seconds is not None:
        fields["deadline"] = (run.opened_at + timedelta(seconds=deadline_seconds)).isoformat()
    return fields


def _checked(read: ReadJobs) -> ReadJobs:
    def lines() -> Iterator[JobFields]:
        for place, fields in read():
            check_line(place, fields)
            yield place, fields

    return lines


def _digest(path: str) -> str:
    if not Path(path).is_file():
        raise PagemillError(f"{path} is not a file on this machine" if Path(path).exists() else f"{path} is not there")
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PagemillError(f"{path} cannot be read: {error.strerror}") from None
