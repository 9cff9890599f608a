"""Where log lines go while a command runs."""

import logging

import click

FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"


class EchoHandler(logging.Handler):
    """Writes to whatever standard error is at the time, so that lines pass above a live panel instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            click.echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def configure_logging(level: str) -> None:
    """Send this process's log to standard error, from `level` up."""
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=[EchoHandler()], force=True)
