"""The commands that run a worker, as far as they go without a model, and where log lines go."""

import logging
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Run
from worker.cli.logs import configure_logging
from worker.settings_model import HIDDEN, Settings
from worker.settings_serving import SERVING


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """Give the root logger back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("command", ["worker", "up"])
def test_worker_without_a_model_is_a_configuration_error(run: Run, command: str) -> None:
    result = run(command)
    assert result.exit_code == 78
    assert result.stderr.splitlines()[-1] == "error: model: none is set; name one with --model or PAGEMILL_MODEL"


@pytest.mark.parametrize("command", ["worker", "up"])
def test_every_setting_but_the_hidden_ones_has_a_flag(run: Run, command: str) -> None:
    text = run(command, "--help").stdout
    for name, field in Settings.model_fields.items():
        is_a_workers = field.json_schema_extra not in (HIDDEN, SERVING)
        assert (f"--{name.replace('_', '-')} " in text) is is_a_workers, name


def test_bad_flags_name_the_field_and_the_limit(run: Run) -> None:
    result = run("worker", "--max-jobs", "5000", "--model", "m")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: max_jobs: input should be less than or equal to 4096, got '5000' (from flag --max-jobs)\n"
    )


def test_log_takes_other_packages_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_level="info"))
    loggers = [logging.getLogger(name) for name in ("worker.running.service", "engine", "rq.worker")]
    loggers[2].setLevel(logging.DEBUG)
    for logger in loggers:
        logger.debug("a detail of %s", logger.name)
        logger.info("a line of %s", logger.name)
        logger.warning("a warning of %s", logger.name)
    printed = capsys.readouterr().err
    assert "a detail" not in printed
    assert "a line of worker.running.service" in printed
    assert "a line of engine" in printed
    assert "a line of rq.worker" not in printed
    assert "a warning of rq.worker" in printed
