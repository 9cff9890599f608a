"""`pagemill rag summarize`: one summary for each document of a collection."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from worker.cli.options import json_option, service_options
from worker.cli.output import for_display, message, print_json
from worker.cli.progress import Progress, StatusLine
from worker.cli.prompts import read_prompt
from worker.cli.queues import opened_queue
from worker.cli.rag_options import rag_job_options
from worker.cli.stores import opened_database
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.rag.capacity import within_workers
from worker.rag.model import open_model
from worker.rag.prompts import DEFAULT_INSTRUCTIONS, DEFAULT_MAX_TOKENS, SummaryPrompt
from worker.rag.summarizing import PlannedDocument, RunOptions, RunPlan, Summarizer
from worker.rag.summarizing import Progress as RunProgress
from worker.settings import load_settings
from worker.sql.recording import recorder_of


@click.command()
@click.argument("name")
@click.option("--instructions", metavar="TEXT", help="What to do with each document.  [default: summarise it]")
@click.option("--instructions-file", metavar="PATH", type=Path, help="The same from a file; - is standard input.")
@click.option("--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, show_default=True, help="Longest summary.")
@rag_job_options
@click.option("--batch", "batch_id", metavar="NAME", help="Name of the batch.  [default: one is made up]")
@click.option("--dry-run", is_flag=True, help="Only tell what would run.")
@click.option("--wait", is_flag=True, help="Wait for the summaries; exit 1 if some failed.")
@service_options
@json_option
def summarize(
    name: str,
    instructions: str | None,
    instructions_file: Path | None,
    max_tokens: int,
    temperature: float,
    context_tokens: int | None,
    queue: str | None,
    batch_id: str | None,
    tenant: str,
    dry_run: bool,
    wait: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Summarise the documents of the collection NAME, as one batch.

    Only documents run that have no summary yet of their present text by these instructions, parameters and model;
    failed ones run once more. A document that is longer than the context is summarised in parts, and these summaries
    are summarised. Workers take over the summaries as jobs end: nothing has to wait for them, and whatever interrupts
    this command, the next one goes on.

    \b
    Examples:
      pagemill rag summarize manuals --wait
      pagemill rag summarize manuals --instructions "List the safety warnings." --max-tokens 300
      pagemill rag summarize manuals --dry-run
    """
    settings = load_settings({**flags, "queues": None if queue is None else (queue,)})
    prompt = SummaryPrompt(_instructions(instructions, instructions_file), max_tokens, temperature)
    options = RunOptions(settings.queues[0], tenant, batch_id, context_tokens, settings.result_ttl_seconds)
    with ExitStack() as opened:
        model = open_model(settings)
        recorder = opened.enter_context(recorder_of(settings))
        database = opened.enter_context(opened_database(settings))
        model = within_workers(model, database, settings)
        connection = opened.enter_context(opened_queue(settings))
        summarizer = Summarizer(database, connection, recorder, model)
        run = summarizer.plan(name, prompt, options)
        if not dry_run:
            _submit(summarizer, run, prompt, options)
        if not wait or dry_run:
            _print_run(run, as_json=as_json, dry_run=dry_run)
            return
        ended = _wait(summarizer, run)
    _print_end(run, ended, as_json=as_json)
    if ended.failed:
        sys.exit(ExitCode.JOBS_FAILED)


def _instructions(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise click.UsageError("give either --instructions or --instructions-file")
    if file is not None:
        return read_prompt(str(file))
    return DEFAULT_INSTRUCTIONS if text is None else text


def _submit(summarizer: Summarizer, run: RunPlan, prompt: SummaryPrompt, options: RunOptions) -> None:
    line = StatusLine()
    try:
        for number in summarizer.submit(run, prompt, options):
            line.show(f"{number} of {len(run.to_run)} documents submitted")
    finally:
        line.clear()


def _wait(summarizer: Summarizer, run: RunPlan) -> RunProgress:
    """Wait for the run, and for what was under way before it; returns how its version stands at the end."""
    total = len(run.to_run) + len(run.pending)
    bar = Progress(total)
    try:
        for progress in summarizer.wait(run):
            bar.draw(max(0, total - progress.pending), progress.failed)
    except KeyboardInterrupt:
        bar.clear()
        message(f"the jobs of batch {run.batch_id} go on; the same command waits for them again")
        raise
    finally:
        bar.clear()
    return progress


def _print_run(run: RunPlan, *, as_json: bool, dry_run: bool) -> None:
    parts = {"new": run.new, "failed before": run.failed, "under way": run.pending}
    if as_json:
        print_json(
            {
                "collection": run.collection.name,
                "batch": None if dry_run else run.batch_id,
                "jobs": run.num_jobs,
                "new": [_described(planned) for planned in run.new],
                "failed_before": [_described(planned) for planned in run.failed],
                "under_way": [_described(planned) for planned in run.pending],
                "unchanged": run.num_unchanged,
            }
        )
        return
    rows = [(name, len(planned), sum(one.num_tokens for one in planned)) for name, planned in parts.items()]
    title = f"Would run of {run.collection.name}" if dry_run else f"Batch {run.batch_id}"
    print_table(title, ("documents", "number", "tokens"), [*rows, ("unchanged", run.num_unchanged, None)])
    if dry_run and run.to_run:
        details = [(one.document.source, one.num_tokens, one.plan.num_jobs) for one in run.to_run]
        print_table(f"{run.num_jobs} jobs", ("document", "tokens", "jobs"), details)


def _described(planned: PlannedDocument) -> dict[str, object]:
    return {"source": planned.document.source, "tokens": planned.num_tokens, "jobs": planned.plan.num_jobs}


def _print_end(run: RunPlan, ended: RunProgress, *, as_json: bool) -> None:
    if as_json:
        figures = {"submitted": len(run.to_run), "unchanged": run.num_unchanged, "jobs": run.num_jobs}
        print_json(
            {
                "collection": run.collection.name,
                "batch": run.batch_id,
                **figures,
                "done": ended.done,
                "failed": ended.failed,
            }
        )
        return
    rows = [
        ("submitted now", len(run.to_run)),
        ("under way before", len(run.pending)),
        ("unchanged", run.num_unchanged),
        ("have a summary", ended.done),
        ("failed", ended.failed),
    ]
    print_table(f"Summaries of {for_display(run.collection.name)}", ("documents", "number"), rows)
    if ended.failed:
        message(f"pagemill rag ls {run.collection.name} --problems says why some failed; the next run tries them again")
