"""`pagemill config`: the settings and where each comes from."""

from typing import Any

import click
from pydantic import SecretStr

from worker.cli.options import json_option, service_options
from worker.cli.output import print_json
from worker.cli.tables import print_table
from worker.errors import ConfigurationError
from worker.queue.redis_url import MALFORMED, describe_url
from worker.settings import DEFAULT, resolve_settings
from worker.settings_model import HIDDEN, Settings
from worker.sql.database import parse_database_url, place_of


@click.group()
def config() -> None:
    """Show the settings.

    \b
    Example:
      pagemill config show
    """


@config.command()
@service_options
@json_option
def show(as_json: bool, **flags: Any) -> None:
    """Show each setting's value, its source and its meaning. Passwords are left out.

    \b
    Examples:
      pagemill config show
      PAGEMILL_MAX_JOBS=8 pagemill config show --json
    """
    resolved = resolve_settings(flags)
    rows = [
        (name, masked(name, getattr(resolved.settings, name)), resolved.sources[name], field.description)
        for name, field in Settings.model_fields.items()
        if field.json_schema_extra is not HIDDEN or resolved.sources[name] != DEFAULT
    ]
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source, _ in rows})
        return
    readable = [(name, ",".join(value) if isinstance(value, tuple) else value, *rest) for name, value, *rest in rows]
    print_table("Settings", ("setting", "value", "source", "meaning"), readable)


def masked(name: str, value: object) -> object:
    """Return a setting's value; of a URL, only where it leads."""
    if not isinstance(value, SecretStr):
        return value
    url = value.get_secret_value()
    if name != "database_url":
        return describe_url(url)
    try:
        return place_of(parse_database_url(url))
    except ConfigurationError:
        return MALFORMED
