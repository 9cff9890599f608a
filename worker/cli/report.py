"""`pagemill report`: what became of the jobs, and their figures."""

from datetime import datetime
from pathlib import Path
from typing import Any

import click

from worker.cli.options import Since, store_options
from worker.cli.report_output import Destination, destination, output_options
from worker.cli.stores import opened_reports
from worker.reports.catalogue import latency_table, memory_table, prefix_table, summary_table
from worker.settings import load_settings
from worker.sql.reporting import Dimension, ReportFilter, SummaryReport

GROUPINGS = {"tenant-model": (Dimension.TENANT, Dimension.MODEL), "queue": (Dimension.QUEUE,)}


@click.command()
@click.argument("kind", type=click.Choice(["summary", "latency", "memory", "prefix"]), default="summary")
@click.option("--since", type=Since(), help="Jobs that ended since: 1h, 7d, or an ISO date or time.")
@click.option("--queue", help="Jobs of this queue.")
@click.option("--batch", help="Jobs of this batch.")
@click.option("--model", help="Jobs that this model served, or that asked for it.")
@click.option("--by", type=click.Choice(list(GROUPINGS)), default="tenant-model", help="The rows of prefix.")
@output_options
@store_options
def report(
    kind: str,
    since: datetime | None,
    queue: str | None,
    batch: str | None,
    model: str | None,
    by: str,
    form: str | None,
    as_json: bool,
    path: Path | None,
    **flags: Any,
) -> None:
    """Report on jobs: what became of them (summary, the default), their latency, memory or prefix hits.

    Percentiles are by nearest rank. Prompt tokens that the prefix cache held were not computed again.

    \b
    Examples:
      pagemill report
      pagemill report latency --since 1h --queue bulk
      pagemill report prefix --batch nightly --json
      pagemill report latency -o latency.csv
    """
    target = destination(form, as_json, path)
    chosen = ReportFilter(since=since, queue=queue, batch=batch, model=model)
    with opened_reports(load_settings(flags)) as reports:
        if kind == "summary":
            _write_summary(reports.summary(chosen), target)
            return
        table = {
            "latency": lambda: latency_table(reports, chosen),
            "memory": lambda: memory_table(reports, chosen),
            "prefix": lambda: prefix_table(reports, chosen, GROUPINGS[by]),
        }[kind]()
    target.write_table(table, table.records())


def _write_summary(summary: SummaryReport, target: Destination) -> None:
    target.write_table(summary_table(summary), summary)
