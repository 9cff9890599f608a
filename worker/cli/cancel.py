"""`pagemill cancel`: end jobs before they are done."""

import sys
from collections import Counter
from typing import Any

import click

from worker.cancelling import cancel_batch, cancel_jobs
from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.errors import ExitCode, PagemillError
from worker.queue.access import Cancellation, CancelOutcome
from worker.settings import load_settings
from worker.settings_model import Settings

WORDS = {
    CancelOutcome.CANCELLED_WAITING: "cancelled before it started",
    CancelOutcome.CANCELLING: "its worker is ending it",
    CancelOutcome.NOT_CANCELLABLE: "has ended already",
    CancelOutcome.UNKNOWN: "unknown job",
}
CANCELLED = frozenset({CancelOutcome.CANCELLED_WAITING, CancelOutcome.CANCELLING})


@click.command()
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--batch", "batch_id", metavar="NAME", help="Cancel what has not ended of this batch.")
@service_options
@json_option
def cancel(job_ids: tuple[str, ...], batch_id: str | None, as_json: bool, **flags: Any) -> None:
    """Cancel jobs by their exact ids, or a whole batch: at once where they wait or back off, through their worker where
    they run, which stops them within a step and keeps their output so far.

    Exits 1 when a job given by its id was unknown or had ended already.

    \b
    Examples:
      pagemill cancel 0123456789abcdef0123456789abcdef
      pagemill cancel --batch nightly
    """
    if bool(job_ids) == (batch_id is not None):
        raise click.UsageError("give either IDs or --batch")
    settings = load_settings(flags)
    if batch_id is None:
        _cancel_jobs(settings, job_ids, as_json=as_json)
    else:
        _cancel_batch(settings, batch_id, as_json=as_json)


def _cancel_jobs(settings: Settings, job_ids: tuple[str, ...], *, as_json: bool) -> None:
    answers: dict[str, Cancellation] = {}
    with opened_store(settings) as store, opened_queue(settings) as connection:
        for chunk in cancel_jobs(store, connection, job_ids):
            answers.update(chunk)
    if as_json:
        print_json(answers)
    else:
        print_table("Cancelled", ("job", "outcome"), [(job_id, WORDS[a.outcome]) for job_id, a in answers.items()])
    if not {answer.outcome for answer in answers.values()} <= CANCELLED:
        sys.exit(ExitCode.JOBS_FAILED)


def _cancel_batch(settings: Settings, batch_id: str, *, as_json: bool) -> None:
    counts: Counter[CancelOutcome] = Counter()
    with opened_store(settings) as store, opened_queue(settings) as connection:
        for chunk in cancel_batch(store, connection, batch_id):
            counts.update(answer.outcome for answer in chunk.values())
        if not counts and store.batch(batch_id) is None:
            raise PagemillError(f"no batch {batch_id} in the database or in the queues")
    if as_json:
        print_json({"batch": batch_id, "jobs": counts})
    else:
        print_table(f"Batch {batch_id}", ("outcome", "jobs"), [(WORDS[outcome], n) for outcome, n in counts.items()])
