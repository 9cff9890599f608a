"""Fixtures that several areas of tests share."""

import subprocess
import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

# A machine for the kernels and the engine alone has neither.
if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # No test is timed: a busy machine is slow to draw, and to run, examples.
    settings.register_profile("pagemill", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("pagemill")

if find_spec("sqlalchemy") is not None:
    pytest_plugins = ["tests.services", "tests.redis_server", "tests.browser"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="write the tables of docs/ that tests hold")


ROOT = Path(__file__).resolve().parent.parent
BEGUN_FIRST = ("long", "model")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The path of the real model's GGUF file, fetched on first use."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch-model")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take minutes first: begun last, one process would run on alone. Of them, those that mostly
    wait come before those that run real models, so that both are under way at the same time."""
    paths = {name: {item.path for item in items if item.get_closest_marker(name) is not None} for name in BEGUN_FIRST}
    items.sort(key=lambda item: [item.path not in paths[name] for name in BEGUN_FIRST])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in what a test has printed and logged: a process of a parallel run reports in UTF-8."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
