"""The pytest plugin of the suite's runs: writes each result as it comes, so that a crash loses none before it."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from scripts.rq_suite.environment import REPORT_VARIABLE


class Reporter:
    """Appends results to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _write(self, test: str, outcome: str, detail: str = "") -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "detail": detail}) + "\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write what is going to run."""
        for item in session.items:
            self._write(item.nodeid, "collected")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write a file that cannot be imported."""
        if report.failed:
            self._write(report.nodeid, "failed", report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write how a test, or its set-up or tear-down, ended."""
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report.outcome, report.longreprtext if report.failed else "")

    def pytest_sessionfinish(self) -> None:
        """End the processes that failed tests have left: Python would wait for them at its exit."""
        for child in multiprocessing.active_children():
            child.kill()


def pytest_configure(config: pytest.Config) -> None:
    """Register the reporter."""
    config.pluginmanager.register(Reporter(Path(os.environ[REPORT_VARIABLE])))
