"""`pagemill batch`: files of requests in OpenAI's format."""

import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from worker.batch.changes import cancel as cancel_batch
from worker.batch.changes import known_batch
from worker.batch.detached import submit_file
from worker.batch.exporting import error_lines, output_lines
from worker.batch.patience import Patience
from worker.batch.records import DEFAULT_WINDOW, ENDED_STATES, BatchState, BatchStatus
from worker.batch.running import Plan
from worker.batch.submitting import Submitter
from worker.cli.batch_context import (
    Screen,
    Watch,
    described,
    opened_batches,
    opened_requests,
    request_options,
    rules_for,
    status_fields,
    timeout_option,
    window_option,
    write_lines,
)
from worker.cli.batch_run import run
from worker.cli.options import json_option, service_options, store_options
from worker.cli.output import message, print_json
from worker.cli.queues import opened_queue
from worker.cli.tables import print_fields, print_table
from worker.errors import ExitCode, TryLater
from worker.settings import load_settings
from worker.sql.recording import recorder_of

POLL_SECONDS = 1.0
COMPLAIN_POLLS = 5
LISTED = 20
WAITED_FOR = ENDED_STATES | {BatchState.FINALIZING}


@click.group()
def batch() -> None:
    """Run files of requests in OpenAI's batch format: a line a request, a line a result.

    `run` stays until all results are written; `submit` hands the file over and returns.

    \b
    Examples:
      pagemill batch run requests.jsonl -o results.jsonl
      pagemill batch submit requests.jsonl
    """


batch.add_command(run)


@batch.command()
@click.argument("requests", metavar="IN.jsonl")
@request_options
@window_option
@service_options
@json_option
def submit(
    requests: str,
    queue: str | None,
    tenant: str,
    model: str | None,
    max_tokens: int | None,
    strict: bool,
    window: timedelta | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Submit a file of requests as a batch, and print the batch's id. Its --window is 24h unless you say otherwise.

    All lines are checked first; one that is at fault is among the errors in the end, and the others are run: with any,
    this exits 1, as `batch wait` will. Should it be interrupted, the same command goes on with the same batch.

    \b
    Example:
      pagemill batch submit requests.jsonl --window 12h
    """
    settings = load_settings({**flags, "queues": None if queue is None else (queue,)})
    screen = Screen()
    try:
        with ExitStack() as opened:
            file = opened.enter_context(opened_requests(Path(requests)))
            recorder = opened.enter_context(recorder_of(settings))
            connection = opened.enter_context(opened_queue(settings))
            store = opened.enter_context(opened_batches(settings))
            rules = rules_for(settings, store.engine, max_tokens, model)
            plan = Plan(requests, None, tenant, settings.queues[0], rules, window or DEFAULT_WINDOW, strict)
            submitter = Submitter(connection, recorder, store, screen.notice, settings.result_ttl_seconds)
            status = submit_file(store, submitter, file, plan, checked=screen.checked, submitted=screen.submitted)
            complaint = Watch(settings, store.engine, connection, plan.queue).complaint()
    finally:
        screen.clear()
    if as_json:
        print_json(status_fields(status))
    else:
        click.echo(status.batch.batch_id)
    if status.batch.num_faults:
        message(f"{status.batch.num_faults:,} of {status.batch.num_requests:,} lines are at fault and are not run")
    if complaint is not None:
        message(complaint)
    if status.batch.num_faults:
        sys.exit(ExitCode.JOBS_FAILED)


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@store_options
@json_option
def status(batch_id: str, as_json: bool, **flags: Any) -> None:
    """Show how far a batch is: its state, as in OpenAI's Batch API, and how many of its requests have ended.

    \b
    Example:
      pagemill batch status batch_0123456789abcdef01234567
    """
    with opened_batches(load_settings(flags)) as store:
        _show(known_batch(store, batch_id), as_json=as_json)


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@timeout_option
@service_options
@json_option
def wait(batch_id: str, timeout: timedelta, as_json: bool, **flags: Any) -> None:
    """Wait until all requests of a batch have ended. Exits 1 when some failed.

    \b
    Example:
      pagemill batch wait "$(pagemill batch submit requests.jsonl)"
    """
    settings = load_settings(flags)
    screen = Screen()
    patience = Patience(timeout.total_seconds(), screen.notice)
    told: str | None = None
    with opened_batches(settings) as store, opened_queue(settings) as connection:
        current = known_batch(store, batch_id)
        watch = Watch(settings, store.engine, connection, current.batch.queue)
        polls = 0
        try:
            while current.batch.state not in WAITED_FOR:
                complaint = watch.complaint() if polls % COMPLAIN_POLLS == 0 else told
                if complaint is not None and complaint != told:
                    screen.notice(complaint)
                told = complaint
                screen.went_on(current.counts.completed, current.counts.failed, current.counts.total or 0)
                time.sleep(POLL_SECONDS)
                polls += 1
                current = patience.call(lambda: known_batch(store, batch_id))
        finally:
            screen.clear()
    if as_json:
        print_json(status_fields(current))
    else:
        message(described(current))
    if current.counts.failed or current.batch.failure is not None:
        sys.exit(ExitCode.JOBS_FAILED)


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@click.option("-o", "--output", metavar="PATH", help="Default: standard output.")
@click.option("--errors", metavar="PATH", help="Where what failed goes.  [default: nowhere]")
@click.option("--partial", is_flag=True, help="Also of a batch that has not ended.")
@store_options
def results(batch_id: str, output: str | None, errors: str | None, partial: bool, **flags: Any) -> None:
    """Write the results of a batch, in the order of its requests.

    \b
    Examples:
      pagemill batch results batch_0123456789abcdef01234567 > results.jsonl
      pagemill batch results batch_0123456789abcdef01234567 -o results.jsonl --errors errors.jsonl
    """
    with opened_batches(load_settings(flags)) as store:
        current = known_batch(store, batch_id)
        if current.batch.state not in WAITED_FOR and not partial:
            raise TryLater(f"{described(current)}; --partial writes what there is")
        write_lines(None if output is None else Path(output), output_lines(store, current.batch))
        if errors is not None:
            write_lines(Path(errors), error_lines(store, current.batch))
    if current.counts.failed:
        message(
            f"{current.counts.failed:,} requests failed" + ("; --errors PATH writes them" if errors is None else "")
        )
        sys.exit(ExitCode.JOBS_FAILED)


@batch.command()
@click.argument("batch_id", metavar="BATCH")
@service_options
@json_option
def cancel(batch_id: str, as_json: bool, **flags: Any) -> None:
    """Cancel what has not ended of a batch. What is done stays, and can be had with `results`.

    \b
    Example:
      pagemill batch cancel batch_0123456789abcdef01234567
    """
    settings = load_settings(flags)
    with opened_batches(settings) as store, opened_queue(settings) as connection:
        _show(cancel_batch(store, connection, batch_id), as_json=as_json)


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=LISTED, show_default=True)
@click.option("--after", metavar="BATCH", help="Only those that were made before this one.")
@store_options
@json_option
def list_batches(limit: int, after: str | None, as_json: bool, **flags: Any) -> None:
    """List batches that were made of files, the latest first.

    \b
    Example:
      pagemill batch list --limit 5
    """
    with opened_batches(load_settings(flags)) as store:
        batches = [status_fields(status) for status in store.latest(limit, after=after)]
    if as_json:
        print_json(batches)
    else:
        columns = ("batch", "state", "requests", "completed", "failed", "created", "input")
        print_table("Batches", columns, [[fields[name] for name in columns] for fields in batches])


def _show(status: BatchStatus, *, as_json: bool) -> None:
    fields = status_fields(status)
    if as_json:
        print_json(fields)
    else:
        print_fields("Batch", {name: value for name, value in fields.items() if value is not None})
