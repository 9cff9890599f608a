"""`pagemill report`: what became of the jobs, and their figures."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from worker.cli.options import Since, json_option, store_options
from worker.cli.output import print_json
from worker.cli.stores import opened_reports
from worker.cli.tables import format_bytes, print_fields, print_table
from worker.settings import load_settings
from worker.sql.reporting import LatencyRow, MemoryRow, PrefixGrouping, PrefixRow, ReportFilter, SummaryReport

GROUPINGS = {"tenant-model": PrefixGrouping.TENANT_MODEL, "queue": PrefixGrouping.QUEUE}


@click.command()
@click.argument("kind", type=click.Choice(["summary", "latency", "memory", "prefix"]), default="summary")
@click.option("--since", type=Since(), help="Jobs that ended since: 1h, 7d, or an ISO date or time.")
@click.option("--queue", help="Jobs of this queue.")
@click.option("--batch", help="Jobs of this batch.")
@click.option("--model", help="Jobs that this model served, or that asked for it.")
@click.option("--by", type=click.Choice(list(GROUPINGS)), default="tenant-model", help="The rows of prefix.")
@store_options
@json_option
def report(
    kind: str,
    since: datetime | None,
    queue: str | None,
    batch: str | None,
    model: str | None,
    by: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Report on jobs: what became of them (summary, the default), their latency, memory or prefix hits.

    Percentiles are by nearest rank. Prompt tokens that the prefix cache held were not computed again.

    \b
    Examples:
      pagemill report
      pagemill report latency --since 1h --queue bulk
      pagemill report prefix --batch nightly --json
    """
    chosen = ReportFilter(since=since, queue=queue, batch=batch, model=model)
    with opened_reports(load_settings(flags)) as reports:
        match kind:
            case "latency":
                rows = reports.latency(chosen)
                print_json(rows) if as_json else _print_latency(rows)
            case "memory":
                figures = reports.memory(chosen)
                print_json(figures) if as_json else _print_memory(figures)
            case "prefix":
                groups = reports.prefix(chosen, GROUPINGS[by])
                print_json(groups) if as_json else _print_prefix(groups)
            case _:
                summary = reports.summary(chosen)
                print_json(summary) if as_json else _print_summary(summary)


def _print_summary(summary: SummaryReport) -> None:
    share = None if summary.prefix_hit_share is None else f"{summary.prefix_hit_share:.1%}"
    states = {f"jobs {state.value}": count for state, count in summary.jobs_by_state.items()}
    failures = {f"failures: {code}": count for code, count in summary.failures_by_error_code.items()}
    fields = {
        **states,
        **failures,
        "jobs with more than one attempt": summary.jobs_with_retries,
        "prompt tokens": summary.prompt_tokens,
        "of these from the prefix cache": f"{summary.prefix_hit_tokens:,} ({share})" if share else None,
        "output tokens": summary.completion_tokens,
        "preemptions": summary.preemptions,
        "first claim": summary.first_claim_at,
        "last end": summary.last_end_at,
        "span in seconds": summary.span_s,
        "output tokens per second": summary.completion_tokens_per_s,
        "jobs per second": summary.jobs_done_per_s,
    }
    print_fields("Summary", fields)


def _print_latency(rows: Sequence[LatencyRow]) -> None:
    print_table(
        "Latency in milliseconds",
        ("metric", "jobs", "mean", "p50", "p90", "p99", "max"),
        [(row.metric.removesuffix("_ms"), row.count, row.mean, row.p50, row.p90, row.p99, row.max) for row in rows],
    )


def _print_memory(rows: Sequence[MemoryRow]) -> None:
    cells = []
    for row in rows:
        figures = (row.mean, row.p50, row.p99, row.max, row.total)
        readable = [_readable(row.metric, value) for value in figures]
        cells.append((row.metric, row.count, *readable))
    print_table("Memory", ("metric", "jobs", "mean", "p50", "p99", "max", "total"), cells)


def _print_prefix(rows: Sequence[PrefixRow]) -> None:
    names = list(rows[0].group) if rows else ["group"]
    print_table(
        "Prefix cache",
        (*names, "jobs", "with a hit", "prompt tokens", "from the cache", "hit rate"),
        [
            (
                *row.group.values(),
                row.jobs,
                row.jobs_with_hit,
                row.prompt_tokens,
                row.prefix_hit_tokens,
                None if row.hit_rate is None else f"{row.hit_rate:.1%}",
            )
            for row in rows
        ],
    )


def _readable(metric: str, value: float | None) -> str | float | None:
    return format_bytes(value) if value is not None and "bytes" in metric else value
