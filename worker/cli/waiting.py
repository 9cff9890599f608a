"""Waiting for jobs: outputs as they come on standard output, progress on standard error."""

from collections.abc import Mapping

import click
import redis

from worker.cli.output import for_display, print_json_line, print_text
from worker.cli.progress import Progress
from worker.client import JobEnd, ends
from worker.records import JobState


def print_ends(connection: redis.Redis, names: Mapping[str, str | None], *, as_json: bool) -> int:
    """Print each job's output when it ends, and return how many did not end well. `names` are custom ids by id.

    One job prints its text alone; of several, each gets a line with its id before. JSON is one object a line.
    """
    failed = 0
    progress = Progress(len(names))
    try:
        progress.draw(0, 0)
        for done, end in enumerate(ends(connection, names), start=1):
            failed += end.state is not JobState.DONE
            progress.clear()
            if as_json:
                print_json_line(_as_json(end, names[end.job_id]))
            else:
                _print_end(end, names[end.job_id] if len(names) > 1 else None, alone=len(names) == 1)
            progress.draw(done, failed)
    finally:
        progress.clear()
    return failed


def _print_end(end: JobEnd, name: object, *, alone: bool) -> None:
    value = end.value or {}
    # Of several outputs each has its lines, with an empty one between.
    text = "\n\n".join(str(output.get("text", "")) for output in value.get("choices", [value]))
    if alone and end.state is JobState.DONE:
        print_text(text)
        return
    title = for_display(f"{end.job_id} ({name})" if name else end.job_id)
    if end.state is JobState.DONE:
        click.echo(f"== {title}")
        print_text(text)
    else:
        reason = f": {for_display(_first_line(end.error))}" if end.error else ""
        click.echo(f"== {title} {end.state.value}{reason}", err=alone)


def _as_json(end: JobEnd, custom_id: object) -> dict[str, object]:
    return {"id": end.job_id, "custom_id": custom_id, "state": end.state, "error": end.error, "result": end.value}


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
