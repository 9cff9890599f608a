"""`pagemill up`: everything on one machine, in one command."""

import sys
from typing import Any

import click

from worker.cli.logs import configure_logging
from worker.cli.panel import live_panel, panel_for
from worker.cli.supervised import flag_arguments, restart_option, run_supervised
from worker.cli.worker import WORKER_SETTINGS, check_worker, settings_options, start_worker
from worker.settings import load_settings
from worker.sql import schema


@click.command()
@restart_option
@settings_options(WORKER_SETTINGS)
def up(restart: bool, **flags: Any) -> None:
    """Run the queue, the migrations and a worker, and show what happens in a live panel.

    The embedded queue starts unless --redis-url is set, and the database is brought up to date. A worker whose
    process dies is started again. Ctrl-C drains.

    \b
    Example:
      pagemill up --model models/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    settings = load_settings(flags)
    configure_logging(settings)
    if restart:
        check_worker(settings)
        sys.exit(run_supervised(settings, ["up", "--no-restart", *flag_arguments(flags)]))
    schema.upgrade(settings.sql_url())
    start_worker(settings, burst=False, panel=panel_for(settings, live_panel))
