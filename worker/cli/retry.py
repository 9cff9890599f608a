"""`pagemill retry`: queue ended jobs again."""

import sys
from typing import Any

import click

from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.retry import RetryOutcome, retry_jobs
from worker.settings import load_settings

WORDS = {
    RetryOutcome.RETRIED: "queued again",
    RetryOutcome.DUE_NOW: "its back-off is over: it is tried again now",
    RetryOutcome.WAITING: "waits or runs already",
    RetryOutcome.EXPIRED: "its deadline has passed; submit it anew",
    RetryOutcome.DONE: "is done; nothing to retry",
    RetryOutcome.NO_PROMPT: "its record is no prompt job; submit it anew",
    RetryOutcome.UNKNOWN: "unknown job",
}


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@service_options
@json_option
def retry(job_ids: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Queue jobs again that failed, were cancelled or were dead-lettered; they keep their ids and attempts. A job
    that waits out a back-off is tried again at once.

    Exits 1 when some job could not be queued again.

    \b
    Example:
      pagemill retry 0123456789abcdef0123456789abcdef
    """
    settings = load_settings(flags)
    with opened_queue(settings) as connection, opened_store(settings) as store:
        outcomes = retry_jobs(store, connection, job_ids, result_ttl_seconds=settings.result_ttl_seconds)
    if as_json:
        print_json(outcomes)
    else:
        print_table("Retried", ("job", "outcome"), [(job_id, WORDS[outcome]) for job_id, outcome in outcomes.items()])
    if not set(outcomes.values()) <= {RetryOutcome.RETRIED, RetryOutcome.DUE_NOW, RetryOutcome.WAITING}:
        sys.exit(ExitCode.JOBS_FAILED)
