"""The handler that writes log lines, and how a command tells its last error. Imports nothing heavy: every command
has it."""

import logging

import click

logger = logging.getLogger(__name__)


class EchoHandler(logging.Handler):
    """Writes to whatever standard error is at the time, so that lines pass above a live panel instead of through it."""

    def __init__(self, level: str, formatter: logging.Formatter, *, is_for_machines: bool) -> None:
        """`is_for_machines` tells that all of standard error is to be log records."""
        super().__init__(level)
        self.setFormatter(formatter)
        self.is_for_machines = is_for_machines

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            click.echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def tell_error(line: str) -> None:
    """Say why a command ends: as a log record where machines read the log, else as a line of text."""
    handlers = logging.getLogger().handlers
    if any(isinstance(handler, EchoHandler) and handler.is_for_machines for handler in handlers):
        logger.critical("%s", line)
    else:
        click.echo(f"error: {line}", err=True)
