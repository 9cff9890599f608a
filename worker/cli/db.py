"""`pagemill db`: the database's tables."""

from typing import Any

import click

from worker.cli.options import json_option, store_options
from worker.cli.output import message, print_json, print_text
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
def check(**flags: Any) -> None:
    """Check that the tables are exactly what this version needs; exit 78 when they are not.

    \b
    Example:
      pagemill db check && pagemill worker
    """
    schema.check(load_settings(flags).sql_url())
    message(f"the tables are at revision {schema.head()}, as this version needs them")
