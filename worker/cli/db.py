"""`pagemill db`: the database's tables."""

import sys
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from worker.cli.options import Since, json_option, store_options
from worker.cli.output import message, print_json, print_text
from worker.cli.progress import Progress, StatusLine
from worker.cli.stores import opened_database
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.settings import load_settings
from worker.sql import schema
from worker.sql.retention import Purged, Purger, PurgeScope
from worker.sql.rollups.rolling import Roller, rolled_end
from worker.sql.tables import utc_now


@click.group()
def db() -> None:
    """Create, upgrade and check the database's tables; roll up and purge what is in them.

    \b
    Example:
      pagemill db upgrade
    """


@db.command()
@store_options
def upgrade(**flags: Any) -> None:
    """Bring the tables to what this version needs. Safe to run again.

    \b
    Example:
      pagemill db upgrade --database-url postgresql://me@localhost/pagemill
    """
    url = load_settings(flags).sql_url()
    before = schema.current(url)
    schema.upgrade(url)
    message(f"already at revision {before}" if before == schema.head() else f"upgraded to revision {schema.head()}")


@db.command()
@store_options
@json_option
def current(as_json: bool, **flags: Any) -> None:
    """Print the database's revision, and the one that this version needs.

    \b
    Example:
      pagemill db current
    """
    revision, head = schema.current(load_settings(flags).sql_url()), schema.head()
    if as_json:
        print_json({"revision": revision, "head": head})
    else:
        print_text(f"{revision or 'no tables'} ({'up to date' if revision == head else f'{head} is needed'})")


@db.command()
@store_options
@json_option
def check(as_json: bool, **flags: Any) -> None:
    """Check that the tables are exactly what this version needs; exit 78 when they are not.

    Each difference is printed: what is missing or changed, and what others added to our tables. Workers start with
    what is marked extra, and do not with what is marked breaking. Tables of others in the same database are named, and
    no fault.

    \b
    Examples:
      pagemill db check && pagemill worker
      pagemill db check --json
    """
    report = schema.examine(load_settings(flags).sql_url())
    if as_json:
        print_json({"head": schema.head(), **asdict(report)})
    elif report.differences:
        rows = [(f"{item.kind} {item.name}", item.what, item.harm) for item in report.differences]
        print_table("Differences", ("where", "difference", "kind"), rows)
    if report.other_tables:
        message(f"{len(report.other_tables)} tables of others are here too: {', '.join(report.other_tables)}")
    where = f"the tables are at revision {report.revision}" + (" of a later version" if report.is_later else "")
    if report.differences:
        message(f"{where}, and differ in {len(report.differences)} places from what this version needs")
        sys.exit(ExitCode.CONFIGURATION)
    message(f"{where}, and have all that this version needs")


@db.command()
@click.option("--all", "check_all", is_flag=True, help="Look for changed jobs in all hours, not only in the last days.")
@store_options
@json_option
def rollup(check_all: bool, as_json: bool, **flags: Any) -> None:
    """Count the jobs of the hours that are over, so that reports over millions of jobs are fast.

    Workers do so by themselves (tidy_seconds). Safe at any time, beside workers and again.

    \b
    Example:
      pagemill db rollup --all
    """
    line = StatusLine()
    with opened_database(load_settings(flags)) as engine:
        try:
            rolled = Roller(engine).run(
                check_all=check_all, told=lambda done, total: line.show(f"{done} of {total} days")
            )
        finally:
            line.clear()
    if as_json:
        print_json(rolled)
    else:
        again = f", {rolled.hours_again:,} of them again" if rolled.hours_again else ""
        print_text(f"rolled up {rolled.jobs:,} jobs of {rolled.hours:,} hours{again}")


@db.command()
@click.option(
    "--older-than", "before", type=Since(), required=True, help="Jobs that ended before: 90d, or an ISO date."
)
@click.option("--batch", help="Jobs of this batch alone.")
@click.option("--tenant", help="Jobs of this tenant alone.")
@click.option("--texts-only", is_flag=True, help="Delete prompts and outputs; the jobs and their figures stay.")
@click.option("--dry-run", is_flag=True, help="Change nothing, only count.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
@json_option
def purge(
    before: datetime,
    batch: str | None,
    tenant: str | None,
    texts_only: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Delete jobs that ended long ago, with their attempts, outputs and figures. Reports keep what was counted.
    Without --batch and --tenant, runs of schedules go too.

    A few hundred at a time, so that workers go on meanwhile. Jobs that wait or run are never touched. What ended in an
    hour that is not over stays until it can be counted. Workers do the same where retention_days is set.

    \b
    Examples:
      pagemill db purge --older-than 90d --dry-run
      pagemill db purge --older-than 30d --texts-only --yes
      pagemill db purge --older-than 1d --batch tonight
    """
    scope = PurgeScope(before, batch, tenant, texts_only)
    with opened_database(load_settings(flags)) as engine:
        purger = Purger(engine)
        found = purger.count(scope, rolled_end(utc_now()))
        if not dry_run:
            what = "the texts of " if texts_only else ""
            if (found.jobs or found.runs) and not yes:
                click.confirm(f"Purge {what}{_described(found)}?", abort=True, err=True)
            progress = Progress(found.jobs)
            try:
                found = purger.run(scope, told=progress.draw)
            finally:
                progress.clear()
    if as_json:
        print_json(found)
    else:
        verb = "would purge" if dry_run else "purged"
        print_text(f"{verb} {'the texts of ' if texts_only else ''}{_described(found)}")
        if found.too_recent:
            message(f"{found.too_recent:,} more ended within the last hour or so, and stay until they are rolled up")


def _described(purged: Purged) -> str:
    runs = f" and {purged.runs:,} runs of schedules" if purged.runs else ""
    return f"{purged.jobs:,} jobs{runs}"
