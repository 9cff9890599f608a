"""Running a worker behind a parent process that starts it again when it dies."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from worker.queue.embedded import EmbeddedServer
from worker.running.supervisor import Supervisor
from worker.settings_model import Settings

# -P: nothing is imported from the working directory, as with the installed command.
PROGRAM = (sys.executable, "-P", "-c", "from worker.cli.main import main; main()")

restart_option = click.option(
    "--restart/--no-restart", default=True, show_default=True, help="Start the worker again when its process dies."
)


def run_supervised(settings: Settings, arguments: Sequence[str]) -> int:
    """Run the command `arguments`, a worker's, until it ends in order; return the exit code. On the main thread.

    Raises ConfigurationError or ServiceUnavailable when the embedded queue cannot be used.
    """
    supervisor = Supervisor([*PROGRAM, *arguments], settings.data_dir)
    if settings.redis_url is not None:
        return supervisor.run()
    queue = EmbeddedServer(settings.data_dir)  # a user of the queue: its server lives on while the worker starts again
    try:
        return supervisor.run()
    finally:
        queue.release()


def flag_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Return the flags that were given, as the command line has them."""
    arguments = []
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            arguments.append(f"--{flag}={value}")
    return arguments
