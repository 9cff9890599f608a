"""`pagemill cancel`: end jobs before they are done."""

import json
import sys
from typing import Any

import click

from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.queues import opened_queue
from worker.cli.redis_jobs import RedisJob, find_redis_job
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.job_changes import SubmittedJob
from worker.jobs import parse_job
from worker.lookups import JobDetail
from worker.queue_access import Cancellation, CancelOutcome, QueueAccess
from worker.records import JobState
from worker.settings import load_settings

WORDS = {
    CancelOutcome.CANCELLED_WAITING: "cancelled before it started",
    CancelOutcome.CANCELLING: "its worker is ending it",
    CancelOutcome.NOT_CANCELLABLE: "has ended already",
    CancelOutcome.UNKNOWN: "unknown job",
}


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@service_options
@json_option
def cancel(job_ids: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Cancel jobs by their exact ids: at once where they wait, through their worker where they run.

    Exits 1 when some job was unknown or had ended already.

    \b
    Example:
      pagemill cancel 0123456789abcdef0123456789abcdef
    """
    settings = load_settings(flags)
    answers: dict[str, Cancellation] = {}
    cancelled: list[SubmittedJob] = []
    # The store opens first: when SQL cannot be reached, nothing is cancelled in Redis that SQL would not hear of.
    with opened_store(settings) as store, opened_queue(settings) as connection:
        store.states(job_ids)
        access = QueueAccess(connection)
        for job_id in dict.fromkeys(job_ids):
            job = find_redis_job(connection, job_id)
            answers[job_id] = access.cancel(job_id)
            if job is not None and _is_cancelled(answers[job_id]):
                cancelled += _as_submitted(job)
            elif answers[job_id].outcome is CancelOutcome.UNKNOWN:
                lost = _lost_by_redis(store.job(job_id))
                cancelled += lost
                if lost:
                    answers[job_id] = Cancellation(CancelOutcome.CANCELLED_WAITING, None)
        store.record_cancelled(cancelled)
    if as_json:
        print_json(answers)
    else:
        print_table("Cancelled", ("job", "outcome"), [(job_id, WORDS[a.outcome]) for job_id, a in answers.items()])
    if not {answer.outcome for answer in answers.values()} <= {
        CancelOutcome.CANCELLED_WAITING,
        CancelOutcome.CANCELLING,
    }:
        sys.exit(ExitCode.JOBS_FAILED)


def _is_cancelled(answer: Cancellation) -> bool:
    """Tell whether Redis holds the job as cancelled; an earlier call may have ended before it told SQL."""
    return answer.outcome is CancelOutcome.CANCELLED_WAITING or answer.status == "canceled"


def _lost_by_redis(job: JobDetail | None) -> list[SubmittedJob]:
    """Return a job that waits as far as SQL knows: without its end there, reconciling would queue it again."""
    if job is None or job.state is not JobState.QUEUED or job.enqueued_at is None:
        return []
    prompt = parse_job(json.loads(job.payload))
    return [SubmittedJob(job.id, job.queue, prompt, job.payload, job.enqueued_at)]


def _as_submitted(job: RedisJob) -> list[SubmittedJob]:
    """Return the row that SQL gets for a waiting job, or nothing for a record that is no prompt job."""
    if job.payload is None or job.enqueued_at is None:
        return []
    return [
        SubmittedJob(
            job_id=job.id,
            queue=job.queue,
            job=parse_job(json.loads(job.payload)),
            payload_json=job.payload,
            enqueued_at=job.enqueued_at,
        )
    ]
