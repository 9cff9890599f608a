"""`pagemill up`: everything on one machine, in one command."""

from typing import Any

import click

from worker import schema
from worker.cli.logs import configure_logging
from worker.cli.panel import live_panel
from worker.cli.worker import settings_options, start_worker
from worker.settings import load_settings


@click.command()
@settings_options
def up(**flags: Any) -> None:
    """Run the queue, the migrations and a worker, and show what happens in a live panel.

    The embedded queue starts unless --redis-url is set, and the database is brought up to date. Ctrl-C drains.

    \b
    Example:
      pagemill up --model models/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    settings = load_settings(flags)
    configure_logging(settings.log_level)
    schema.upgrade(settings.sql_url())
    start_worker(settings, burst=False, panel=live_panel)
