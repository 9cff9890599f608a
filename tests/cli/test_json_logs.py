"""JSON logs: each line one object that names its job, whoever logs and whatever the text."""

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.sql.builders import claim_of
from worker.cli.json_logs import JsonFormatter
from worker.cli.logs import adopt_loggers, configure_logging
from worker.log_fields import FIELDS, about, at_hand, naming_worker
from worker.settings_model import Settings
from worker.settings_types import LogFormat

ROOT = Path(__file__).resolve().parents[2]
TRACE = "0af7651916cd43dd8448eb211c80319c"

logger = logging.getLogger("worker.tests")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    hooks = sys.excepthook, threading.excepthook
    yield
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks
    root.handlers[:], root.level = handlers, level


class Lines:
    """Reads what was logged since the last time."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Lines:
    """A log in JSON."""
    configure_logging(Settings(log_format=LogFormat.JSON))
    return Lines(capsys)


def test_record_is_one_object_on_one_line(log: Lines) -> None:
    logger.warning("two\nlines, \x1b[31mred\x1b[0m, \u2028, \ud800 and %s", "ü\x00")
    (line,) = log.read()
    assert line["message"] == "two\nlines, \x1b[31mred\x1b[0m, \u2028, \ufffd and ü\x00"
    assert (line["level"], line["logger"], line["thread"]) == ("warning", "worker.tests", "MainThread")
    assert line["time"].endswith("Z")
    assert len(line["time"]) == len("2026-05-01T08:00:00.000Z")


def test_record_about_a_job_names_it(log: Lines) -> None:
    claim = claim_of(
        "a", 7, tenant="acme", batch_id="night", metadata={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    )
    with naming_worker("worker-1"):
        logger.info("begins", extra=about(claim))
    logger.info("no job's")
    first, second = log.read()
    assert {name: first[name] for name in FIELDS} == {
        "job_id": "a",
        "batch_id": "night",
        "tenant": "acme",
        "queue": "default",
        "worker": "worker-1",
        "epoch": 7,
        "trace_id": TRACE,
    }
    assert not second.keys() & set(FIELDS)


def test_library_that_logs_during_a_job_names_it_too(log: Lines) -> None:
    with at_hand(about(claim_of("a"))):
        logging.getLogger("quiet.library").warning("odd text")  # not one that prints by itself once it is imported
        logger.warning("about another", extra={"job_id": "b"})
    assert [line["job_id"] for line in log.read()] == ["a", "b"]


def test_error_has_type_message_and_stack(log: Lines) -> None:
    try:
        int("of\ntwo lines")
    except ValueError:
        logger.exception("job %s failed", "a")
    (line,) = log.read()
    assert (line["error"]["type"], line["error"]["message"]) == (
        "ValueError",
        "invalid literal for int() with base 10: 'of\\ntwo lines'",
    )
    assert line["error"]["stack"].startswith("Traceback (most recent call last):\n")


def test_record_with_arguments_that_do_not_fit_is_kept() -> None:
    record = logging.LogRecord("worker.tests", logging.ERROR, __file__, 1, "only %d", ("text",), None)
    assert json.loads(JsonFormatter().format(record))["message"] == "only %d ('text',)"


def test_loggers_that_print_by_themselves_are_taken_over(log: Lines) -> None:
    loud = logging.getLogger("loud.library")
    loud.addHandler(logging.StreamHandler(sys.stderr))
    loud.propagate = False
    adopt_loggers()
    loud.warning("a warning")
    (line,) = log.read()
    assert (line["logger"], line["message"]) == ("loud.library", "a warning")


def test_warnings_and_errors_that_nobody_caught_are_records() -> None:
    code = """
import threading, warnings
from worker.cli.json_logs import JsonFormatter
from worker.cli.logs import configure_logging
from worker.settings_model import Settings
configure_logging(Settings(log_format="json"))
warnings.warn("old ways")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise KeyError("nobody")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    warning, in_thread, last = map(json.loads, done.stderr.splitlines())
    assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    assert "UserWarning: old ways" in warning["message"]
    assert in_thread["error"]["type"] == "ZeroDivisionError"
    assert (last["level"], last["error"]["type"], done.returncode) == ("critical", "KeyError", 1)


def test_text_log_leaves_warnings_to_python() -> None:
    configure_logging(Settings())
    with pytest.warns(UserWarning, match="old ways"):
        warnings.warn("old ways", stacklevel=1)
    assert (sys.excepthook, threading.excepthook) == (sys.__excepthook__, threading.__excepthook__)


def test_command_that_ends_with_an_error_logs_it(run: Run) -> None:
    result = run("worker", "--log-format", "json")
    (line,) = map(json.loads, result.stderr.splitlines())
    assert (line["level"], line["message"]) == (
        "critical",
        "model: none is set; name one with --model or PAGEMILL_MODEL",
    )
    assert result.exit_code == 78
