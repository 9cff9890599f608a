"""`pagemill submit`: prompts into the queue. Imports neither the engine nor SQL, and no tables: it answers at once."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from worker.cli.options import QueueName, json_option, queue_options
from worker.cli.output import message, print_json
from worker.cli.prompts import STDIN, build_jobs, parse_metadata, read_jsonl, read_prompt
from worker.cli.queues import opened_queue
from worker.cli.waiting import print_ends
from worker.client import enqueue, prepare
from worker.errors import ExitCode, InvalidJob
from worker.settings import load_settings


@click.command()
@click.argument("prompt", required=False)
@click.option("--file", "files", multiple=True, metavar="PATH", help="A file that is one prompt; may be repeated.")
@click.option("--jsonl", metavar="PATH", help="A job on each line: a JSON string or object. - is standard input.")
@click.option("--queue", type=QueueName(), help="Default: the first of the setting queues.")
@click.option("--batch", "batch_id", metavar="NAME", help="Submit the jobs as this batch.")
@click.option("--tenant", help="Whose jobs these are; prefixes are cached apart for each.")
@click.option("--share-prefix", is_flag=True, default=None, help="Cache the prompt for all tenants that say so too.")
@click.option("--model", help="The model to answer; default: the worker's.")
@click.option("--system", help="System message before the prompt.")
@click.option("--raw", is_flag=True, default=None, help="Send the text as it is, without the chat template.")
@click.option("--max-tokens", type=int, help="Longest output.  [default: 256]")
@click.option("--min-tokens", type=int, help="Shortest output.")
@click.option("--temperature", type=float, help="0 is greedy.  [default: 0]")
@click.option("--top-k", type=int)
@click.option("--top-p", type=float)
@click.option("--min-p", type=float)
@click.option("--seed", type=int, help="Default: derived from the job's id.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated.")
@click.option("--stop-token-id", "stop_token_ids", multiple=True, type=int, help="May be repeated.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after the model's end token.")
@click.option("--custom-id", help="Your own name for the job.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Kept with the job; may be repeated.")
@click.option("--wait", is_flag=True, help="Print outputs as jobs end; exit 1 if some failed.")
@queue_options
@json_option
def submit(
    prompt: str | None,
    files: tuple[str, ...],
    jsonl: str | None,
    queue: str | None,
    wait: bool,
    as_json: bool,
    redis_url: str | None,
    data_dir: str | None,
    **fields: Any,
) -> None:
    """Submit prompts and print the ids of their jobs, one on each line.

    PROMPT is the text, or - for standard input. All jobs are checked before the first is queued. In a JSONL file, an
    object's fields are those of a job (prompt or messages, max_tokens, temperature, custom_id, ...) and win over flags.

    \b
    Examples:
      pagemill submit "Why is the sky blue?" --max-tokens 64 --wait
      pagemill submit --jsonl questions.jsonl --batch nightly --queue bulk
      git diff | pagemill submit - --system "Review this change."
    """
    defaults = _defaults(fields)
    sources = list(_sources(prompt, files, jsonl))
    if not sources:
        raise InvalidJob("jsonl", f"{jsonl} holds no jobs")
    if "batch_id" in defaults:
        defaults["batch_size"] = len(sources)
    settings = load_settings(
        {"redis_url": redis_url, "data_dir": data_dir, "queues": None if queue is None else (queue,)}
    )
    jobs = prepare(build_jobs(sources, defaults))
    target, ttl = settings.queues[0], settings.result_ttl_seconds
    with opened_queue(settings) as connection:
        ids: list[str] = []
        for chunk in enqueue(connection, jobs, queue=target, result_ttl_seconds=ttl):
            ids += chunk
            if not wait and not as_json:
                click.echo("\n".join(chunk))
        if wait:
            failed = print_ends(connection, jobs, as_json=as_json)
            if failed:
                message(f"{failed} of {len(jobs)} jobs failed")
                sys.exit(ExitCode.JOBS_FAILED)
        elif as_json:
            print_json({"queue": target, "batch": defaults.get("batch_id"), "ids": ids})


def _defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given, as fields of a job."""
    given = {name: value for name, value in fields.items() if value is not None and value != ()}
    if "metadata" in given:
        given["metadata"] = parse_metadata(given["metadata"])
    return given


def _sources(
    prompt: str | None, files: tuple[str, ...], jsonl: str | None
) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Yield (place, job fields) from the one kind of source that was given."""
    if sum((prompt is not None, bool(files), jsonl is not None)) != 1:
        raise click.UsageError("give one of PROMPT (- is standard input), --file and --jsonl")
    if jsonl is not None:
        yield from read_jsonl(jsonl)
    elif prompt is not None:
        yield None, {"prompt": read_prompt(STDIN) if prompt == STDIN else prompt}
    else:
        for path in files:
            yield path, {"prompt": read_prompt(path)}
