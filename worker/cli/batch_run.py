"""`pagemill batch run`: a file of requests to files of results and errors, and what it would take (`--dry-run`)."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import click
import redis
from sqlalchemy import Engine

from worker.batch.changes import cancel, known_batch, retry_failed
from worker.batch.estimating import Estimate, recent_throughput, token_counter
from worker.batch.follower import ErrorsFile, Follower
from worker.batch.lines import CheckedFile, RequestReader, check_file, digest_of
from worker.batch.output_file import OutputFile, opened_output
from worker.batch.patience import Patience
from worker.batch.records import BatchFile, BatchStatus, LineFault
from worker.batch.running import BatchRun, Plan
from worker.batch.store import BatchStore
from worker.batch.submitting import Submitter, rules_of
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
)
from worker.cli.interrupts import noted_interrupts
from worker.cli.options import json_option, service_options
from worker.cli.output import message, print_json
from worker.cli.progress import format_span
from worker.cli.queues import opened_queue
from worker.cli.tables import print_fields, print_table
from worker.errors import ExitCode, PagemillError
from worker.retry import RetryOutcome
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.sql import schema
from worker.sql.recording import recorder_of

SHOWN_FAULTS = 20  # in a table
SHOWN_FAULTS_JSON = 1_000


@click.command()
@click.argument("requests", metavar="IN.jsonl")
@click.option("-o", "--output", metavar="PATH", help="Where results go, a line each, as they come.")
@click.option("--errors", metavar="PATH", help="Where what failed goes.  [default: OUTPUT with .errors before .jsonl]")
@click.option("--dry-run", is_flag=True, help="Only check all lines; say what they would take.")
@click.option("--fresh", is_flag=True, help="Start over, and write over the results of an earlier run.")
@click.option("--retry-failed", "retry", is_flag=True, help="Go on, and run again what failed.")
@request_options
@window_option
@timeout_option
@service_options
@json_option
def run(
    requests: str,
    output: str | None,
    errors: str | None,
    dry_run: bool,
    fresh: bool,
    retry: bool,
    strict: bool,
    as_json: bool,
    queue: str | None,
    tenant: str,
    model: str | None,
    max_tokens: int | None,
    window: timedelta | None,
    timeout: timedelta,
    **flags: Any,
) -> None:
    """Run a file of requests in OpenAI's batch format, and write each result as it comes.

    All lines are checked first. One that is at fault goes to the errors, and the others are run. Should anything
    interrupt this, the same command goes on where it was: nothing is run twice, and nothing is written twice. While SQL
    or Redis is away, it waits, up to --timeout.

    Exits 1 when some requests failed, 2 when none could be run.

    \b
    Examples:
      pagemill batch run requests.jsonl --dry-run
      pagemill batch run requests.jsonl -o results.jsonl --errors errors.jsonl
      pagemill batch run requests.jsonl -o results.jsonl --retry-failed
    """
    settings = load_settings({**flags, "queues": None if queue is None else (queue,)})
    if dry_run:
        _dry_run(settings, requests, max_tokens, model, as_json=as_json)
        return
    if output is None:
        raise click.UsageError("give --output, or --dry-run")
    if fresh and retry:
        raise click.UsageError("give one of --fresh and --retry-failed")
    paths = _Paths.of(requests, output, errors)
    earlier = _Earlier.FORGET if fresh else _Earlier.RETRY if retry else _Earlier.GO_ON
    opened = ExitStack()
    screen = Screen(opened.enter_context(noted_interrupts()))
    try:
        with opened:
            session = _Session.opened(opened, settings, screen, timeout)
            rules = rules_for(settings, session.store.engine, max_tokens, model)
            plan = Plan(str(paths.requests), str(paths.output), tenant, settings.queues[0], rules, window, strict)
            status = _run(opened, session, paths, plan, earlier)
    except KeyboardInterrupt:
        screen.clear()
        message("interrupted; what was submitted goes on, and the same command writes the rest of its results")
        raise
    finally:
        screen.clear()
    _report(status, paths, as_json=as_json)


class _Earlier(Enum):
    """What becomes of an earlier run of the same command."""

    GO_ON = auto()
    RETRY = auto()  # go on, and run again what failed
    FORGET = auto()


@dataclass(frozen=True)
class _Paths:
    """The files of a run: absolute, and three different ones."""

    requests: Path
    output: Path
    errors: Path

    @classmethod
    def of(cls, requests: str, output: str, errors: str | None) -> Self:
        """Raise PagemillError where two of them are one file."""
        results = Path(output).absolute()
        failures = Path(errors).absolute() if errors else results.with_stem(f"{results.stem}.errors")
        paths = cls(Path(requests).absolute(), results, failures)
        names = {"IN.jsonl": paths.requests, "--output": paths.output, "--errors": paths.errors}
        for (one, first), (other, second) in combinations(names.items(), 2):
            if first.resolve() == second.resolve() or (first.exists() and second.exists() and first.samefile(second)):
                raise PagemillError(f"{other}: {second} is the file of {one} too")
        return paths


@dataclass(frozen=True)
class _Session:
    """The services of a run."""

    settings: Settings
    store: BatchStore
    connection: redis.Redis
    submitter: Submitter
    screen: Screen
    patience: Patience

    @classmethod
    def opened(cls, opened: ExitStack, settings: Settings, screen: Screen, timeout: timedelta) -> Self:
        """Open the services; `opened` closes them."""
        recorder = opened.enter_context(recorder_of(settings))
        connection = opened.enter_context(opened_queue(settings))
        store = opened.enter_context(opened_batches(settings))
        patience = Patience(timeout.total_seconds(), screen.notice)
        submitter = Submitter(connection, recorder, store, screen.notice, settings.result_ttl_seconds, patience)
        return cls(settings, store, connection, submitter, screen, patience)


def _run(opened: ExitStack, session: _Session, paths: _Paths, plan: Plan, earlier: _Earlier) -> BatchStatus:
    store = session.store
    file = opened.enter_context(opened_requests(paths.requests))
    output = opened.enter_context(opened_output(paths.output))
    key = plan.key(digest_of(file))
    found = store.by_run_key(key)
    if earlier is _Earlier.FORGET:
        _forget(session, found, output, paths.errors)
        found = None
    elif earlier is _Earlier.RETRY and found is not None:
        found = _retry(session, found)
    if found is not None and found.end is not None and found.in_progress_at is None:
        raise PagemillError(f"batch {found.batch_id} was cancelled before it was submitted; --fresh begins anew")
    batch = found or plan.new_batch(key)
    follower = Follower(store, batch, output, ErrorsFile(paths.errors, batch.batch_id, opened))
    if found is None:
        batch = store.create(batch)
        session.screen.notice(f"batch {batch.batch_id} begins")
    elif found.end is None:
        written = follower.tally.completed
        session.screen.notice(f"batch {batch.batch_id} goes on: {written:,} results are written already")
    else:
        session.screen.notice(f"batch {batch.batch_id} has ended before; --fresh would run everything anew")
    watch = Watch(session.settings, store.engine, session.connection, batch.queue)
    run = BatchRun(store, session.submitter, follower, session.screen, watch.complaint, session.patience)
    return run.run(file, batch, plan)


def _forget(session: _Session, found: BatchFile | None, output: OutputFile, errors: Path) -> None:
    if found is not None:
        cancel(session.store, session.connection, found.batch_id)
        session.store.forget_run(found.batch_id)
    output.clear()
    if errors.exists():
        with opened_output(errors) as file:
            file.clear()


def _retry(session: _Session, found: BatchFile) -> BatchFile:
    """Queue what failed again; return the batch as it is then."""
    ttl = session.settings.result_ttl_seconds
    outcomes = retry_failed(session.store, session.connection, found.batch_id, result_ttl_seconds=ttl)
    retried = outcomes.get(RetryOutcome.RETRIED, 0)
    session.screen.notice(f"{retried:,} requests run again")
    if outcomes.get(RetryOutcome.EXPIRED, 0):
        session.screen.notice(f"{outcomes[RetryOutcome.EXPIRED]:,} have expired: --fresh runs everything anew")
    return known_batch(session.store, found.batch_id).batch


def _report(status: BatchStatus, paths: _Paths, *, as_json: bool) -> None:
    if as_json:
        print_json({**status_fields(status), "errors": paths.errors if status.counts.failed else None})
    else:
        failed = f"; what failed is in {paths.errors}" if status.counts.failed else ""
        message(f"{described(status)}; results are in {paths.output}{failed}")
    if status.counts.failed:
        sys.exit(ExitCode.JOBS_FAILED)


def _dry_run(settings: Settings, requests: str, max_tokens: int | None, model: str | None, *, as_json: bool) -> None:
    screen = Screen()
    faults: list[LineFault] = []

    def keep(found: list[LineFault]) -> None:
        faults.extend(found[: SHOWN_FAULTS_JSON - len(faults)])

    with opened_requests(Path(requests)) as file, _opened_engine(settings) as engine:
        rules = rules_for(settings, engine, max_tokens, model)
        estimate = Estimate(token_counter(settings), None if engine is None else recent_throughput(engine))
        batch = Plan(requests, None, "default", settings.queues[0], rules, timedelta(1)).new_batch(None)
        try:
            checked = check_file(file, RequestReader(rules_of(batch, rules)), keep, screen.checked, estimate.take)
        finally:
            screen.clear()
    if as_json:
        print_json(_dry_document(checked, estimate, faults))
    else:
        _print_dry(checked, estimate, faults)
    if checked.num_faults or not checked.num_requests:
        sys.exit(ExitCode.JOBS_FAILED if checked.good else ExitCode.USAGE)


@contextmanager
def _opened_engine(settings: Settings) -> Iterator[Engine | None]:
    """Give the database, for what it knows of workers and of jobs of late; None where it has no tables yet."""
    with opened_batches(settings) as store:
        yield None if schema.current(settings.sql_url()) is None else store.engine


def _dry_document(checked: CheckedFile, estimate: Estimate, faults: list[LineFault]) -> dict[str, object]:
    return {
        "requests": checked.num_requests,
        "at_fault": checked.num_faults,
        "endpoint": checked.endpoint,
        "prompt_tokens": estimate.prompt_tokens,
        "prompt_tokens_counted": estimate.counter.described,
        "most_output_tokens": estimate.most_output_tokens,
        "seconds": estimate.seconds,
        "recent": estimate.recent,
        "faults": faults,
    }


def _print_dry(checked: CheckedFile, estimate: Estimate, faults: list[LineFault]) -> None:
    most = estimate.most_output_tokens
    recent = estimate.recent
    time = "unknown: no job is done yet"
    if recent is not None and estimate.seconds is not None:
        pace = f"{recent.tokens_per_second:,.0f} tokens/s and {recent.mean_output_tokens:,.0f} output tokens each"
        time = f"about {format_span(estimate.seconds)}, if it goes as the last {recent.jobs:,} jobs did: {pace}"
    print_fields(
        "Dry run",
        {
            "requests": checked.num_requests,
            "at fault": checked.num_faults,
            "endpoint": checked.endpoint,
            "prompt tokens": f"{estimate.prompt_tokens:,} ({estimate.counter.described})",
            "output tokens": "as many as fit: some requests have no max_tokens"
            if most is None
            else f"at most {most:,}",
            "time": time,
        },
    )
    if faults:
        rows = [(fault.line, fault.custom_id, fault.message) for fault in faults[:SHOWN_FAULTS]]
        print_table("Lines at fault", ("line", "custom_id", "reason"), rows)
    if checked.num_faults > SHOWN_FAULTS:
        message(f"and {checked.num_faults - SHOWN_FAULTS:,} more lines at fault; --json lists {SHOWN_FAULTS_JSON:,}")
