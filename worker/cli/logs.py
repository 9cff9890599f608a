"""Where log lines go while a command runs, and in which form."""

import logging
import sys
import threading
from types import TracebackType

from worker.cli.echo import EchoHandler
from worker.cli.json_logs import JsonFormatter
from worker.settings_model import Settings
from worker.settings_types import LogFormat

FORMAT = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
OWN_LOGGERS = ("worker", "engine", "kernels")

logger = logging.getLogger(__name__)


def configure_logging(settings: Settings) -> None:
    """Send this process's log to standard error, from the level that is set up; of other packages, warnings and worse
    only. As JSON, what Python itself would print is logged too: warnings and errors that nobody caught.
    """
    level, is_json = settings.log_level.upper(), settings.log_format is LogFormat.JSON
    formatter = JsonFormatter() if is_json else logging.Formatter(FORMAT)
    handler = EchoHandler(level, formatter, is_for_machines=is_json)
    # On the handler, not on their loggers: RQ sets the level of its own ones.
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or _is_own(record.name))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(is_json)
    sys.excepthook = _log_uncaught if is_json else sys.__excepthook__
    threading.excepthook = _log_uncaught_in_thread if is_json else threading.__excepthook__


def adopt_loggers() -> None:
    """Take over the loggers of imported packages that print by themselves, so that all lines have one form."""
    for other in list(logging.getLogger().manager.loggerDict.values()):
        if not isinstance(other, logging.Logger):
            continue
        for handler in list(other.handlers):
            if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
                other.removeHandler(handler)
                other.propagate = True


def _is_own(logger_name: str) -> bool:
    return logger_name.partition(".")[0] in OWN_LOGGERS


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logger.critical("nobody caught a %s", kind.__name__, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    error = arguments.exc_value or arguments.exc_type()
    if not isinstance(error, SystemExit):  # how a thread may end itself
        _log_uncaught(arguments.exc_type, error, arguments.exc_traceback)
