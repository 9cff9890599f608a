"""`pagemill tail`: a job's output while it is generated."""

import sys
from typing import Any

import click
import redis

from worker.cli.options import service_options
from worker.cli.output import for_display, message, print_text
from worker.cli.queues import opened_queue, queue_name
from worker.cli.stores import opened_store
from worker.errors import ExitCode, PagemillError
from worker.queue.access import QueueAccess
from worker.queue.redis_jobs import find_redis_job
from worker.records import TERMINAL_STATES, JobState
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.sql.lookups import JobDetail

WATCH_SECONDS = 30.0  # how long one request for tokens lasts; renewed while we read
BLOCK_MS = 1_000  # how long one read waits, and so how soon we see a job end that publishes nothing


@click.command()
@click.argument("job_id", metavar="ID")
@service_options
def tail(job_id: str, **flags: Any) -> None:
    """Print a job's output token by token, and end when the job does.

    A job that still waits is waited for; one that has ended shows its stored output. Exits 1 when the job failed.

    \b
    Example:
      pagemill tail "$(pagemill submit 'Write a short poem about rivers.')"
    """
    settings = load_settings(flags)
    job = _find_ended(settings, job_id)
    if job is None:
        with opened_queue(settings) as connection:
            followed = _follow(connection, settings, job_id)
        job = _find_ended(settings, job_id)
        if followed:
            click.echo()
    else:
        followed = False
    if job is None:
        message(f"job {job_id} has ended; the database does not know how yet")
        return
    if not followed and job.result is not None:
        print_text(job.result.text)
    if job.state is not JobState.DONE:
        message(f"job {job.id} is {job.state.value}" + (f": {job.error_message}" if job.error_message else ""))
        sys.exit(ExitCode.JOBS_FAILED)


def _find_ended(settings: Settings, job_id: str) -> JobDetail | None:
    """Return the job if SQL knows it and it has ended."""
    with opened_store(settings) as store:
        job = store.job(job_id)
    return job if job is not None and job.state in TERMINAL_STATES else None


def _follow(connection: redis.Redis, settings: Settings, job_id: str) -> bool:
    """Print tokens until the job ends. Return whether any came.

    A job that is handed back and starts over prints its output again, from its beginning.
    """
    access = QueueAccess(connection)
    last_id, printed, was_waiting = "0-0", False, False
    while True:
        job = find_redis_job(connection, job_id)
        if job is None:
            raise PagemillError(f"no job {job_id} in the database or in {queue_name(settings)}")
        if job.state is JobState.QUEUED and not was_waiting:
            message(f"job {job_id} waits in queue {job.queue}")
            was_waiting = True
        has_ended = job.state in TERMINAL_STATES
        if not has_ended:
            access.watch(job_id, WATCH_SECONDS)
        for event in access.read_tokens(job_id, last_id, 0 if has_ended else BLOCK_MS):
            last_id = event.event_id
            if event.delta.index:  # the first output is shown
                continue
            printed = printed or bool(event.delta.text)
            sys.stdout.write(for_display(event.delta.text))
            sys.stdout.flush()
        if has_ended:
            return printed
