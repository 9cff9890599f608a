"""`pagemill submit`: prompts into SQL and the queue. Imports neither the engine nor SQLAlchemy: it answers at once."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import click
import redis

from worker.cli.job_options import given_fields, job_options
from worker.cli.options import QueueName, Until, json_option, service_options
from worker.cli.output import message, print_json
from worker.cli.progress import Progress, StatusLine
from worker.cli.prompts import read_prompt
from worker.cli.queues import opened_queue
from worker.cli.waiting import print_ends
from worker.errors import ExitCode, InvalidJob, PagemillError, ServiceUnavailable
from worker.job_files import STDIN, JobFields, ReadJobs, check_jobs, new_jobs, opened_jsonl
from worker.queue.policy import QueuePolicy
from worker.queue.submission import CHUNK_JOBS, NewJob, enqueue
from worker.settings import load_settings
from worker.sql.recording import recorder_of


@click.command()
@click.argument("prompt", required=False)
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file that is one prompt; may be repeated.")
@click.option("--jsonl", metavar="PATH", help="A job on each line: a JSON string or object. - is standard input.")
@click.option("--queue", type=QueueName(), help="Default: the first of the setting queues.")
@click.option("--batch", "batch_id", metavar="NAME", help="Submit the jobs as this batch.")
@job_options
@click.option("--deadline", type=Until(), help="Fail what has not ended by then: 10m, 2h or 2026-05-01T08:00.")
@click.option(
    "--record/--no-record", default=None, help="Write jobs to SQL first; a queue that is lost is rebuilt from there."
)
@click.option("--wait", is_flag=True, help="Print outputs as jobs end; exit 1 if some failed.")
@service_options
@json_option
def submit(
    prompt: str | None,
    files: tuple[str, ...],
    jsonl: str | None,
    queue: str | None,
    wait: bool,
    record: bool | None,
    as_json: bool,
    redis_url: str | None,
    database_url: str | None,
    data_dir: str | None,
    **fields: Any,
) -> None:
    """Submit prompts and print the ids of their jobs, one on each line.

    PROMPT is the text, or - for standard input. All jobs are checked before the first is queued. In a JSONL file, an
    object's fields are those of a job (prompt or messages, max_tokens, temperature, custom_id, ...) and win over flags.
    Jobs are recorded in SQL, then queued; should Redis lose them, a worker or `pagemill reconcile` queues them again.

    \b
    Examples:
      pagemill submit "Why is the sky blue?" --max-tokens 64 --wait
      pagemill submit --jsonl questions.jsonl --batch nightly --queue bulk
      git diff | pagemill submit - --system "Review this change."
    """
    defaults = given_fields(fields)
    flags = {"queues": None if queue is None else (queue,), "record": record}
    settings = load_settings({**flags, "redis_url": redis_url, "database_url": database_url, "data_dir": data_dir})
    with ExitStack() as opened:
        read = _reader(prompt, files, jsonl, opened)
        num_jobs = _check(read, defaults)
        if not num_jobs:
            raise InvalidJob("jsonl", f"{jsonl} holds no jobs")
        connection = opened.enter_context(opened_queue(settings))
        recorder = opened.enter_context(recorder_of(settings)) if settings.record else None
        names: dict[str, str | None] = {}
        jobs = new_jobs(read, defaults, num_jobs)
        chunks = enqueue(
            connection,
            _remembered(jobs, names) if wait else jobs,
            queue=settings.queues[0],
            result_ttl_seconds=settings.result_ttl_seconds,
            recorder=recorder,
        )
        if as_json and not wait:
            _print_document(chunks, settings.queues[0], defaults.get("batch_id"))
        elif not wait:
            _print_ids(chunks, num_jobs)
        else:
            _accept_all(chunks)
            _mention_pause(connection, settings.queues[0])
            failed = print_ends(connection, names, as_json=as_json)
            if failed:
                message(f"{failed} of {num_jobs} jobs failed")
                sys.exit(ExitCode.JOBS_FAILED)


def _mention_pause(connection: redis.Redis, queue: str) -> None:
    """Say why somebody who waits for jobs may wait for long, as far as this user may know."""
    with suppress(ServiceUnavailable):
        if QueuePolicy(connection).is_paused(queue):
            message(f"queue {queue} is paused: its jobs start when somebody resumes it (pagemill resume {queue})")


def _check(read: ReadJobs, defaults: Mapping[str, Any]) -> int:
    line = StatusLine()

    def tell(number: int) -> None:
        if number % CHUNK_JOBS == 0:
            line.show(f"{number} jobs checked")

    try:
        return check_jobs(read, defaults, tell)
    finally:
        line.clear()


def _print_ids(chunks: Iterable[tuple[str, ...]], num_jobs: int) -> None:
    """Print ids as their jobs are accepted."""
    progress = Progress(num_jobs)
    num_accepted = 0
    try:
        for chunk in chunks:
            num_accepted += len(chunk)
            progress.clear()
            click.echo("\n".join(chunk))
            progress.draw(num_accepted)
    finally:
        progress.clear()


def _accept_all(chunks: Iterable[tuple[str, ...]]) -> None:
    """Have all jobs accepted before waiting for any; print the ids of those that were where an error comes."""
    ids: list[str] = []
    try:
        for chunk in chunks:
            ids += chunk
    except PagemillError:
        if ids:
            click.echo("\n".join(ids))
        raise


def _print_document(chunks: Iterable[tuple[str, ...]], queue: str, batch_id: str | None) -> None:
    """Print one JSON document, of the jobs that were accepted before an error as well."""
    ids: list[str] = []
    try:
        for chunk in chunks:
            ids += chunk
    finally:
        if ids:
            print_json({"queue": queue, "batch": batch_id, "ids": ids})


def _remembered(jobs: Iterable[NewJob], names: dict[str, str | None]) -> Iterator[NewJob]:
    for job in jobs:
        names[job.job_id] = job.payload.get("custom_id")
        yield job


def _reader(prompt: str | None, files: tuple[str, ...], jsonl: str | None, opened: ExitStack) -> ReadJobs:
    """Return the jobs of the one kind of source that was given; what is opened for it is entered into `opened`."""
    if sum((prompt is not None, bool(files), jsonl is not None)) != 1:
        raise click.UsageError("give one of PROMPT (- is standard input), --file and --jsonl")
    if jsonl is not None:
        return opened.enter_context(opened_jsonl(jsonl))
    jobs: list[JobFields] = [(path, {"prompt": read_prompt(path)}) for path in files]
    if prompt is not None:
        jobs = [(None, {"prompt": read_prompt(STDIN) if prompt == STDIN else prompt})]
    return lambda: iter(jobs)
