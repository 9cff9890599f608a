"""`pagemill report`: what became of the jobs, and their figures."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from worker.cli.options import Since, store_options
from worker.cli.report_options import BY, KindGroup, choosing_options, filter_of, kind_options
from worker.cli.report_output import Format, destination, output_options
from worker.cli.stores import opened_reports
from worker.errors import PagemillError
from worker.reports.catalogue import report_table, with_trend
from worker.reports.comparing import Side, compare, comparison_document, comparison_table
from worker.reports.html.page import to_html
from worker.reports.html.report import comparison_page, job_page, kind_page, whole_page
from worker.reports.kinds import (
    COST,
    FAILURES,
    FILTERS,
    LATENCY,
    MEMORY,
    PREFIX,
    SAVINGS,
    SCHEDULES,
    SUMMARY,
    THROUGHPUT,
    WASTE,
    WORKERS,
    By,
    Kind,
)
from worker.reports.phases import phase_table
from worker.settings import load_settings
from worker.sql.reporting import ReportFilter, SummaryReport


@click.group(cls=KindGroup)
def report() -> None:
    """Report on jobs: what became of them, how long they took, what they held, saved and cost.

    Percentiles are by nearest rank. Times are UTC, and so are days. `html` puts all of it, with charts, into one file.

    \b
    Examples:
      pagemill report
      pagemill report latency --since 1h --by queue
      pagemill report prefix --batch nightly --json
      pagemill report throughput --since 30d --by day -o days.csv
      pagemill report html --since 7d -o week.html
      pagemill report compare monday tuesday
    """


def _add(kind: Kind, text: str, *examples: str) -> None:
    """Add one kind of report as a command."""
    lines = "\n".join(f"  pagemill report {example}" for example in examples)

    @report.command(kind.name, help=f"{text}\n\n\b\nExamples:\n{lines}")
    @kind_options(kind)
    def command(form: str | None, as_json: bool, path: Path | None, **flags: Any) -> None:
        target = destination(form, as_json, path)
        by: By = flags.pop(BY, ())
        chosen = filter_of(flags)
        with opened_reports(load_settings(flags)) as reports:
            if target.format is Format.HTML:
                target.write(to_html(kind_page(kind, reports, chosen, by, datetime.now(UTC))))
                return
            table = report_table(kind, reports, chosen, by)
            if target.format is Format.TABLE:
                table = with_trend(table, kind, reports, chosen, by)
            summary = reports.summary(chosen) if table.is_record else None
        if summary is None:
            target.write_table(table, table.records())
        else:
            target.write_table(replace(table, notes=_failures(summary)), summary)


_add(SUMMARY, "What became of the jobs, their tokens, retries and preemptions.", "summary", "summary --by batch")
_add(
    THROUGHPUT,
    "Jobs and tokens by the hour, or by whatever else.",
    "throughput --since 1d",
    "throughput --since 30d --by day,queue --format csv",
)
_add(LATENCY, "Waiting, first token, inter-token and end-to-end times of jobs that are done.", "latency --by queue")
_add(MEMORY, "KV blocks and bytes that jobs held, and the worker's memory.", "memory --since 1h")
_add(SAVINGS, "KV memory saved by paging and by sharing prefixes.", "savings --by tenant")
_add(PREFIX, "Prompt tokens that the prefix cache held, and need not be computed again.", "prefix --by batch")
_add(FAILURES, "Jobs that failed or are dead, by the code of their error.", "failures --since 1d --by queue")
_add(WASTE, "Tokens computed in vain: retries, preemptions, hand-backs, lost and fenced attempts.", "waste --by day")
_add(
    COST,
    "Engine time, and money where workers have a price per hour.",
    "cost --by tenant --since 30d",
    "cost --by batch",
)
_add(WORKERS, "Where the workers' time went, idle time included, in whole hours.", "workers --since 1d --by hour")
_add(SCHEDULES, "What came of each slot of the schedules.", "schedules --since 7d")


@report.command()
@click.argument("job_id", metavar="ID")
@output_options
@store_options
def job(job_id: str, form: str | None, as_json: bool, path: Path | None, **flags: Any) -> None:
    """Show what one job did, phase after phase.

    \b
    Examples:
      pagemill report job 0123456789abcdef0123456789abcdef
      pagemill report job 0123456789abcdef0123456789abcdef -o job.html
    """
    target = destination(form, as_json, path)
    with opened_reports(load_settings(flags)) as reports:
        found = reports.job(job_id)
    if found is None:
        raise PagemillError(f"no job {job_id} with figures in the database")
    if target.format is Format.HTML:
        target.write(to_html(job_page(found, datetime.now(UTC))))
    else:
        table = phase_table(found)
        target.write_table(table, {"job": found, "phases": table.records()})


@report.command("html")
@choosing_options(FILTERS)
@output_options
@store_options
def html_report(form: str | None, as_json: bool, path: Path | None, **flags: Any) -> None:
    """Write everything as one HTML file with charts. It needs no network and no other file.

    \b
    Examples:
      pagemill report html -o report.html
      pagemill report html --since 7d --tenant acme -o acme.html
    """
    if as_json or form not in (None, Format.HTML.value):
        raise PagemillError("report html is always HTML; name another report for --json or --format")
    target = destination(Format.HTML.value, False, path)
    chosen = filter_of(flags)
    with opened_reports(load_settings(flags)) as reports:
        target.write(to_html(whole_page(reports, chosen, datetime.now(UTC))))


@report.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@choosing_options({"queue", "model", "tenant"})
@output_options
@store_options
def compare_runs(
    a: str,
    b: str,
    queue: str | None,
    model: str | None,
    tenant: str | None,
    form: str | None,
    as_json: bool,
    path: Path | None,
    **flags: Any,
) -> None:
    """Compare two runs: two batches by name, or two times written FROM..TO.

    What differs by more than 5% is called better or worse, by more than 25% much better or much worse; fewer than ten
    jobs on either side tell nothing.

    \b
    Examples:
      pagemill report compare monday tuesday
      pagemill report compare 14d..7d 7d.. --queue bulk
      pagemill report compare 2026-11-01..2026-11-08 2026-11-08..2026-11-15 --format html -o weeks.html
    """
    target = destination(form, as_json, path)
    shared = ReportFilter(queue=queue, model=model, tenant=tenant)
    sides = _side(a, shared), _side(b, shared)
    with opened_reports(load_settings(flags)) as reports:
        for side in sides:
            if not any(row.jobs for row in reports.totals(side.chosen)):
                raise PagemillError(f"{side.name}: no jobs")
        rows = compare(reports, *sides)
    if target.format is Format.HTML:
        target.write(to_html(comparison_page(rows, *sides, datetime.now(UTC))))
    else:
        target.write_table(comparison_table(rows, *sides), comparison_document(rows, *sides))


def _side(text: str, shared: ReportFilter) -> Side:
    """Return a run by what it was called: FROM..TO, where either may be left out, or a batch."""
    since, dots, until = text.partition("..")
    if not dots:
        return Side(f"batch {text}", replace(shared, batch=text))
    start, end = (Since().convert(moment, None, None) if moment else None for moment in (since, until))
    if start is not None and end is not None and start >= end:
        raise PagemillError(f"{text}: FROM has to be before TO")
    return Side(text, replace(shared, since=start, until=end))


def _failures(summary: SummaryReport) -> tuple[str, ...]:
    codes = ", ".join(f"{code} {jobs:,}" for code, jobs in summary.failures_by_error_code.items())
    return (f"Failed or dead: {codes}. More of it: pagemill report failures",) if codes else ()
