"""`pagemill serve`: OpenAI's HTTP interface in front of the queue."""

import importlib
from typing import Any

import click

from worker.cli.logs import configure_logging
from worker.cli.worker import settings_options
from worker.extras import require_extra
from worker.settings import load_settings
from worker.settings_model import Settings
from worker.settings_serving import SERVING

SETTINGS = [
    *("redis_url", "database_url", "data_dir"),
    *(name for name, field in Settings.model_fields.items() if field.json_schema_extra is SERVING),
    *("record", "drain_seconds", "log_level", "log_format"),
]
SERVICE = "worker.serving.service"  # imported when it runs: starlette and uvicorn are an extra


@click.command()
@settings_options(SETTINGS)
def serve(**flags: Any) -> None:
    """Serve OpenAI's HTTP interface: /v1/chat/completions, /v1/completions, /v1/files, /v1/batches, /v1/models.

    Requests become jobs in the queue, and the workers answer them, beside everything else that waits there. On an
    address that other machines reach, requests need an API key (see `pagemill keys`), which says whose they are.

    SIGTERM or Ctrl-C: running requests have --drain-seconds to end; a second signal ends them at once.

    \b
    Examples:
      pagemill serve
      pagemill serve --serve-address 0.0.0.0:8000 --serve-queue urgent
      curl http://127.0.0.1:8000/v1/models
    """
    for package in ("starlette", "uvicorn", "multipart"):
        require_extra(package, "the service", extra="serve")
    settings = load_settings(flags)
    configure_logging(settings)
    importlib.import_module(SERVICE).run_service(settings)
