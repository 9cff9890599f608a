"""`pagemill reconcile`: the queue as SQL has it."""

from typing import Any

import click

from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.progress import StatusLine
from worker.cli.queues import opened_queue
from worker.cli.stores import opened_store
from worker.cli.tables import print_table
from worker.reconciling import DryRun, Finding, RealRepairs, Reconciler
from worker.settings import load_settings

WORDS = {
    Finding.QUEUED: "wait in the queue",
    Finding.HELD: "are held by a worker",
    Finding.IN_FLIGHT: "were lost by Redis, but their worker lives and finishes them",
    Finding.REBUILT: "were lost by Redis, and are queued again",
    Finding.EXPIRED: "were lost by Redis, and have failed: their deadline has passed",
    Finding.CANCELLED: "were cancelled in Redis, and now are in SQL",
    Finding.ENDED: "have ended in Redis; SQL has not heard of it yet",
    Finding.ADOPTED: "had got lost inside Redis, and are queued again",
    Finding.UNREADABLE: "were lost by Redis, and cannot be read in SQL",
}


@click.command()
@click.option("--dry-run", is_flag=True, help="Change nothing, only say what would be done.")
@service_options
@json_option
def reconcile(dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Queue again the jobs that SQL has and Redis lost, under their ids and with the times of their submission.

    SQL has what was submitted with --record, and every job that was ever claimed. Safe to run at any time, beside
    workers and producers. Workers do the same now and then (reconcile_seconds), and at once when Redis was wiped or
    restarted.

    \b
    Example:
      pagemill reconcile --dry-run
    """
    settings = load_settings(flags)
    with opened_store(settings) as store, opened_queue(settings) as connection:
        repairs = DryRun() if dry_run else RealRepairs(store, connection, settings.result_ttl_seconds)
        line = StatusLine()
        try:
            findings = Reconciler(store, connection, repairs).run(
                lambda seen, total: line.show(f"{seen} of {total} jobs"), stopped=lambda: False
            )
        finally:
            line.clear()
    if as_json:
        print_json({finding.value: number for finding, number in findings.items()})
    else:
        print_table("Reconciled", ("jobs", "which"), [(findings[finding], WORDS[finding]) for finding in Finding])
