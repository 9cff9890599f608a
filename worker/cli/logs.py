"""Where log lines go while a command runs."""

import logging

import click

FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
OWN_LOGGERS = ("worker", "engine", "kernels")


class EchoHandler(logging.Handler):
    """Writes to whatever standard error is at the time, so that lines pass above a live panel instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            click.echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def configure_logging(level: str) -> None:
    """Send this process's log to standard error, from `level` up; of other packages, warnings and worse only."""
    handler = EchoHandler(level.upper())
    # On the handler, not on their loggers: RQ sets the level of its own ones.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or _is_own(record.name))
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=[handler], force=True)


def _is_own(logger_name: str) -> bool:
    return logger_name.partition(".")[0] in OWN_LOGGERS
