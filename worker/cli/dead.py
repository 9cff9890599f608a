"""`pagemill dead`: jobs that were dead-lettered."""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import click

from worker.cli.options import QueueName, Since, json_option, service_options, store_options
from worker.cli.output import message, print_json
from worker.cli.queues import opened_queue
from worker.cli.retry import WORDS
from worker.cli.stores import opened_store
from worker.cli.tables import print_fields, print_table
from worker.errors import ExitCode, PagemillError
from worker.queue.redis_jobs import forget_dead_jobs
from worker.records import JobState
from worker.retry import RetryOutcome, retry_jobs
from worker.settings import load_settings
from worker.sql.dead_letters import DeadFilter, DeadJob
from worker.sql.lookups import JobDetail
from worker.sql.store import JobStore

P = ParamSpec("P")
R = TypeVar("R")

WORKER_COLUMNS = ("worker", "host", "model", "device", "dtype", "pagemill", "torch", "transformers")
WORKER_FIELDS = (
    *("name", "hostname", "model", "device", "dtype"),
    *("pagemill_version", "torch_version", "transformers_version"),
)
MAX_SHOWN_CHARACTERS = 100  # of a message, in a list


def filter_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the flags that choose among dead jobs."""
    options = (
        click.option("--queue", type=QueueName(), help="Jobs of this queue."),
        click.option("--since", type=Since(), help="Dead-lettered since: 1h, 7d, or an ISO date or time."),
        click.option("--before", type=Since(), help="Dead-lettered before: 30d, or an ISO date or time."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def dead() -> None:
    """Look at dead-lettered jobs, queue them again or delete them.

    A job is dead-lettered when its record is no prompt job, or when it was found guilty of crashing workers (poison).

    \b
    Example:
      pagemill dead list
    """


@dead.command("list")
@filter_options
@store_options
@json_option
def list_dead(queue: str | None, since: datetime | None, before: datetime | None, as_json: bool, **flags: Any) -> None:
    """List dead-lettered jobs, the latest first.

    \b
    Example:
      pagemill dead list --since 1d
    """
    with opened_store(load_settings(flags)) as store:
        jobs = store.dead_jobs(DeadFilter(queue, since, before))
    if as_json:
        print_json(jobs)
    else:
        rows = [(job.id, job.queue, job.dead_at, job.error_code, _shorten(job.error_message)) for job in jobs]
        print_table("Dead", ("job", "queue", "since", "error", "reason"), rows)


@dead.command()
@click.argument("job_id", metavar="ID")
@store_options
@json_option
def show(job_id: str, as_json: bool, **flags: Any) -> None:
    """Show why a job is dead: its diagnosis, and its request or raw record.

    \b
    Example:
      pagemill dead show 0123456789abcdef0123456789abcdef
    """
    with opened_store(load_settings(flags)) as store:
        job = store.job(job_id)
    if job is None or job.state is not JobState.DEAD:
        raise PagemillError(f"job {job_id} is {'unknown' if job is None else f'{job.state.value}, not dead'}")
    diagnosis = json.loads(job.diagnosis) if job.diagnosis else None
    if as_json:
        print_json({"job": job, "diagnosis": diagnosis})
        return
    _print_dead(job)
    if diagnosis is not None:
        _print_diagnosis(diagnosis)
    print_fields("Record", _record_fields(job.payload))


@dead.command()
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option("--all", "all_jobs", is_flag=True, help="All that fit the other flags.")
@filter_options
@service_options
@json_option
def requeue(
    job_ids: tuple[str, ...],
    all_jobs: bool,
    queue: str | None,
    since: datetime | None,
    before: datetime | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Queue dead prompt jobs again, with a clean record; exits 1 when some could not be.

    \b
    Examples:
      pagemill dead requeue 0123456789abcdef0123456789abcdef
      pagemill dead requeue --all --since 1h
    """
    settings = load_settings(flags)
    with opened_queue(settings) as connection, opened_store(settings) as store:
        jobs = _choose(store, job_ids, all_jobs, DeadFilter(queue, since, before))
        ids = [job.id for job in jobs]
        outcomes = dict.fromkeys(job_ids, RetryOutcome.UNKNOWN)
        outcomes |= retry_jobs(store, connection, ids, result_ttl_seconds=settings.result_ttl_seconds)
    if as_json:
        print_json(outcomes)
    else:
        print_table("Requeued", ("job", "outcome"), [(job_id, WORDS[outcome]) for job_id, outcome in outcomes.items()])
    if set(outcomes.values()) - {RetryOutcome.RETRIED}:
        sys.exit(ExitCode.JOBS_FAILED)


@dead.command()
@click.argument("job_ids", metavar="[ID...]", nargs=-1)
@click.option("--all", "all_jobs", is_flag=True, help="All that fit the other flags.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@filter_options
@service_options
@json_option
def purge(
    job_ids: tuple[str, ...],
    all_jobs: bool,
    yes: bool,
    queue: str | None,
    since: datetime | None,
    before: datetime | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Delete dead jobs for good, in SQL and in Redis; exits 1 when some of the ids were of no dead job.

    \b
    Examples:
      pagemill dead purge 0123456789abcdef0123456789abcdef
      pagemill dead purge --all --before 30d --yes
    """
    settings = load_settings(flags)
    with opened_queue(settings) as connection, opened_store(settings) as store:
        jobs = _choose(store, job_ids, all_jobs, DeadFilter(queue, since, before))
        if jobs and not yes:
            click.confirm(f"Delete {len(jobs)} dead jobs for good?", abort=True, err=True)
        # Redis first: when this is interrupted, SQL must still know what there is to forget.
        forget_dead_jobs(connection, [(job.queue, job.id, job.payload) for job in jobs])
        purged = store.purge_dead([job.id for job in jobs])
    if as_json:
        print_json({"purged": sorted(purged)})
    else:
        message(f"deleted {len(purged)} dead jobs")
    if not purged >= set(job_ids):
        sys.exit(ExitCode.JOBS_FAILED)


def _choose(store: JobStore, job_ids: Sequence[str], all_jobs: bool, wanted: DeadFilter) -> tuple[DeadJob, ...]:
    """Return the dead jobs that the command line means: those with these ids, or all that fit."""
    if all_jobs == bool(job_ids):
        raise click.UsageError("name jobs by their ids, or choose with --all (and --queue, --since, --before)")
    jobs = store.dead_jobs(wanted)
    return jobs if all_jobs else tuple(job for job in jobs if job.id in job_ids)


def _print_dead(job: JobDetail) -> None:
    fields = {
        "id": job.id,
        "queue": job.queue,
        "tenant": job.tenant,
        "error": job.error_code,
        "reason": job.error_message,
        "enqueued": job.enqueued_at,
        "dead since": job.ended_at,
    }
    print_fields("Dead job", {name: value for name, value in fields.items() if value is not None})


def _print_diagnosis(diagnosis: dict[str, Any]) -> None:
    crashes = diagnosis.get("crashes", [])
    print_table(
        "Crashes",
        ("worker", "at", "kind", "signal", "suspects"),
        [tuple(crash.get(name) for name in ("worker", "at", "kind", "signal", "num_suspects")) for crash in crashes],
    )
    print_table(
        "Their workers",
        WORKER_COLUMNS,
        [tuple(worker.get(name) for name in WORKER_FIELDS) for worker in diagnosis.get("workers", [])],
    )
    print_fields("To reproduce", {"seed": str(diagnosis.get("seed"))})


def _record_fields(payload: str) -> dict[str, object]:
    """Return the fields of a request or of a raw record, whatever it is."""
    try:
        fields = json.loads(payload)
    except ValueError:
        return {"raw": payload}
    if not isinstance(fields, dict):
        return {"raw": payload}
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
    }


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."
