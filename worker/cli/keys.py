"""`pagemill keys`: who may use `pagemill serve`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from worker.cli.options import TenantName, json_option, store_options
from worker.cli.output import message, print_json, print_text
from worker.cli.tables import print_table
from worker.errors import PagemillError
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.sql.api_keys import ApiKey, ApiKeys
from worker.sql.database import open_database

COLUMNS = ("key", "tenant", "name", "created", "revoked")
MAX_NAME_CHARACTERS = 128


@click.group()
def keys() -> None:
    """Make and revoke the API keys of `pagemill serve`. A key stands for a tenant; several may stand for the same.

    \b
    Example:
      pagemill keys add --tenant acme
    """


@keys.command()
@click.option("--tenant", type=TenantName(), required=True, help="Whose jobs, files and batches its holder's are.")
@click.option("--name", help="What the key is for.")
@store_options
@json_option
def add(tenant: str, name: str | None, as_json: bool, **flags: Any) -> None:
    """Make a key and print it. It is shown this once: the database keeps a hash.

    \b
    Examples:
      pagemill keys add --tenant acme --name "nightly reports"
      export OPENAI_API_KEY="$(pagemill keys add --tenant acme)"
    """
    if name is not None and not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise PagemillError(f"name: must have 1 to {MAX_NAME_CHARACTERS} characters, got {len(name)}")
    with _opened_keys(load_settings(flags)) as api_keys:
        new = api_keys.add(tenant, name)
    if as_json:
        print_json(new)
        return
    message(f"key {new.key_id} of tenant {tenant}; it is not shown again")
    click.echo(new.key)


@keys.command("ls")
@store_options
@json_option
def list_keys(as_json: bool, **flags: Any) -> None:
    """List the keys, revoked ones too.

    \b
    Example:
      pagemill keys ls
    """
    with _opened_keys(load_settings(flags)) as api_keys:
        found = api_keys.all()
    print_json(found) if as_json else print_table("Keys", COLUMNS, [_row(key) for key in found])


@keys.command()
@click.argument("key_id", metavar="KEY")
@store_options
def revoke(key_id: str, **flags: Any) -> None:
    """Let a key be good no more, by its id (key_...). Services have heard of it within some seconds.

    \b
    Example:
      pagemill keys revoke key_0123456789ab
    """
    with _opened_keys(load_settings(flags)) as api_keys:
        if not api_keys.revoke(key_id):
            raise PagemillError(f"there is no key {ascii(key_id)[:80]}; see `pagemill keys ls`")
    print_text(f"key {key_id} is revoked")


@contextmanager
def _opened_keys(settings: Settings) -> Iterator[ApiKeys]:
    engine = open_database(settings.sql_url())
    try:
        yield ApiKeys(engine)
    finally:
        engine.dispose()


def _row(key: ApiKey) -> tuple[object, ...]:
    return (key.key_id, key.tenant, key.name, key.created_at, key.revoked_at)
