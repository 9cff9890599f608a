"""`pagemill worker`: drain the queues."""

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import click

from worker.cli.logs import adopt_loggers, configure_logging
from worker.cli.panel import burst_bar, no_panel, panel_for
from worker.cli.supervised import flag_arguments, restart_option, run_supervised
from worker.errors import ConfigurationError
from worker.extras import require_extra
from worker.progress import Panel
from worker.settings import load_settings
from worker.settings_model import HIDDEN, Settings
from worker.settings_serving import SERVING

P = ParamSpec("P")
R = TypeVar("R")

SERVICE = "worker.running.service"  # imported when a worker runs: it brings the engine, which takes seconds
WORKER_SETTINGS = [
    name for name, field in Settings.model_fields.items() if field.json_schema_extra not in (HIDDEN, SERVING)
]
VALUE_NAMES = {
    "redis_url": "URL",
    "database_url": "URL",
    "data_dir": "DIR",
    "queues": "NAME,...",
    "functions": "NAME,...",
    "kv_memory_bytes": "SIZE",
    "kv_offload_bytes": "SIZE",
    "health_address": "HOST:PORT",
    "serve_address": "HOST:PORT",
    "serve_queue": "NAME",
    "serve_max_file_bytes": "SIZE",
    "serve_tenant_file_bytes": "SIZE",
}


def settings_options(names: Iterable[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that adds a flag for each of these settings, described as the setting is."""

    def add_flags(command: Callable[P, R]) -> Callable[P, R]:
        for name in reversed(list(names)):
            field, flag = Settings.model_fields[name], name.replace("_", "-")
            if field.annotation is bool:
                option = click.option(f"--{flag}/--no-{flag}", name, default=None, help=field.description)
            else:
                option = click.option(f"--{flag}", name, metavar=VALUE_NAMES.get(name, "VALUE"), help=field.description)
            command = option(command)
        return command

    return add_flags


def start_worker(settings: Settings, *, burst: bool, panel: Panel) -> None:
    """Run a worker in this process until it is stopped or, in a burst, until the queues are empty. Raises what
    `check_worker` and `run_worker` raise."""
    check_worker(settings)
    service = importlib.import_module(SERVICE)
    adopt_loggers()
    service.run_worker(settings, burst=burst, panel=panel)


def check_worker(settings: Settings) -> None:
    """Raise ConfigurationError when no model is set or the engine is not installed."""
    if settings.model is None:
        raise ConfigurationError("model: none is set; name one with --model or PAGEMILL_MODEL")
    for package in ("torch", "transformers"):
        require_extra(package, "a worker")


@click.command()
@click.option("--burst", is_flag=True, help="End when all is done: nothing waits, is held or backs off.")
@restart_option
@settings_options(WORKER_SETTINGS)
def worker(burst: bool, restart: bool, **flags: Any) -> None:
    """Run a worker: claim jobs, run many of them at once, write their results to SQL.

    SIGTERM or Ctrl-C drains: held jobs are finished for --drain-seconds, then handed back. A second signal hands back
    at once. A worker whose process dies (a fault of the device, no memory left) is started again, and the jobs that it
    was computing then run apart from the others until it is known which one ends workers; see `pagemill dead`.

    \b
    Examples:
      pagemill worker --model models/SmolLM2-135M-Instruct.Q4_1.gguf --burst
      pagemill worker --model meta-llama/Llama-3.1-8B-Instruct --queues urgent,bulk --max-jobs 128
    """
    settings = load_settings(flags)
    configure_logging(settings)
    if restart:
        check_worker(settings)
        mode = ["--burst"] if burst else []
        sys.exit(run_supervised(settings, ["worker", "--no-restart", *mode, *flag_arguments(flags)]))
    start_worker(settings, burst=burst, panel=panel_for(settings, burst_bar) if burst else no_panel)
