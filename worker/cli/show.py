"""`pagemill show`: one job in full."""

import json
from typing import Any

import click

from worker.cli.attempts import print_attempts
from worker.cli.options import json_option, service_options
from worker.cli.output import print_json, print_text
from worker.cli.queues import opened_queue, queue_name
from worker.cli.stores import opened_store
from worker.cli.tables import print_fields
from worker.errors import PagemillError
from worker.queue.redis_jobs import RedisJob, find_redis_job
from worker.records import Choice
from worker.settings import load_settings
from worker.sql.database import parse_database_url, place_of
from worker.sql.lookups import JobDetail, JobResult
from worker.sql.retention import PURGED_PAYLOAD


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--output", "output_only", is_flag=True, help="Print the output's text only.")
@service_options
@json_option
def show(job_id: str, output_only: bool, as_json: bool, **flags: Any) -> None:
    """Show a job: its state, prompt, output, latency and memory figures, and its attempts with what each cost and where
    its time went.

    A job that was not recorded, and that no worker has claimed yet, is looked up in Redis.

    \b
    Examples:
      pagemill show 0123456789abcdef0123456789abcdef
      pagemill show 0123456789abcdef0123456789abcdef --output > answer.txt
    """
    settings = load_settings(flags)
    with opened_store(settings) as store:
        detail = store.job(job_id)
    found: JobDetail | RedisJob | None = detail
    if found is None:
        with opened_queue(settings) as connection:
            found = find_redis_job(connection, job_id)
    if found is None:
        database = place_of(parse_database_url(settings.sql_url()))
        raise PagemillError(f"no job {job_id} in {database} or in {queue_name(settings)}")
    if output_only:
        if detail is None or detail.result is None:
            raise PagemillError(f"job {job_id} is {found.state.value} and has no output")
        if detail.payload == PURGED_PAYLOAD:
            raise PagemillError(f"the output of job {job_id} was purged")
        print_text(detail.result.text)
    elif as_json:
        print_json(found)
    elif isinstance(found, RedisJob):
        _print_redis_job(found)
    else:
        _print_detail(found)


def _print_redis_job(job: RedisJob) -> None:
    fields = {
        "id": job.id,
        "state": job.state,
        "queue": job.queue,
        "enqueued": job.enqueued_at,
        "due": job.due_at,
        "problem": job.problem,
    }
    print_fields("Job", {name: value for name, value in fields.items() if value is not None})
    _print_prompt(job.payload)


def _print_detail(job: JobDetail) -> None:
    fields = {
        "id": job.id,
        "state": job.state,
        "queue": job.queue,
        "tenant": job.tenant,
        "model": job.model,
        "batch": job.batch_id,
        "custom id": job.custom_id,
        "error": f"{job.error_code}: {job.error_message}" if job.error_code else None,
        "deadline": job.deadline_at,
        "retry due": job.retry_at,
        "retries spent": job.retry_count or None,
        "enqueued": job.enqueued_at,
        "started": job.started_at,
        "ended": job.ended_at,
    }
    print_fields("Job", {name: value for name, value in fields.items() if value is not None})
    if job.payload == PURGED_PAYLOAD:
        click.echo("Prompt and output were purged.")
    else:
        _print_prompt(job.payload)
    if job.result is not None and job.payload != PURGED_PAYLOAD:
        click.echo(f"Output ({_ending(job.result.completion_tokens, job.result)}):")
        print_text(_indent(job.result.text))
        for choice in job.result.choices:
            click.echo(f"Output {choice.index} ({_ending(len(choice.token_ids), choice)}):")
            print_text(_indent(choice.text))
    if job.stats is not None:
        prompt_tokens = {"prompt_tokens": job.result.prompt_tokens} if job.result else {}
        figures = {name: getattr(job.stats, name) for name in job.stats.__slots__}
        print_fields("Figures", prompt_tokens | figures)
    print_attempts(job.attempts)


def _print_prompt(payload: str | None) -> None:
    """Print the job as its producer wrote it, or the fields of a record that is no prompt job."""
    if payload is None:
        return
    fields = json.loads(payload)
    title = "Request" if fields.keys() & {"prompt", "messages"} else "Record"
    if isinstance(fields.get("prompt"), str):
        click.echo("Prompt:")
        print_text(_indent(fields.pop("prompt")))
    rest = {name: json.dumps(value, ensure_ascii=False) for name, value in fields.items() if name != "schema_version"}
    if rest:
        print_fields(title, rest)


def _ending(num_tokens: int, output: JobResult | Choice) -> str:
    chosen_by = "" if output.mean_logprob is None else f", mean log-probability {output.mean_logprob:.4f}"
    return f"{num_tokens} tokens, {output.finish_reason or 'unfinished'}{chosen_by}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
