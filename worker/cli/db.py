"""`pagemill db`: the database's tables."""

import sys
from dataclasses import asdict
from typing import Any

import click

from worker.cli.options import json_option, store_options
from worker.cli.output import message, print_json, print_text
from worker.cli.tables import print_table
from worker.errors import ExitCode
from worker.settings import load_settings
from worker.sql import schema


@click.group()
def db() -> None:
    """Create, upgrade and check the database's tables.

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
    message(f"{where}, {'and have all that' if report.is_later else 'as'} this version needs")
