"""What became of each test, held against the list of exclusions."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LIST_FILE = Path(__file__).with_name("exclusions.toml")


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # by RQ's own conditions
    NOT_RUN = "not run"  # its process ended before


class Expectation(StrEnum):
    """What the list says of a test."""

    FAILS = "fails"  # and a pass is an error: the list is to be shortened
    NOT_RUN = "not-run"  # it would end or hold up the whole process
    FLAKY = "flaky"  # either way


class Verdict(StrEnum):
    """What a result means."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    EXCLUDED = "excluded"
    STALE = "stale"  # excluded, and passes


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A test that need not pass, and why."""

    test: str  # file::class::test
    expectation: Expectation
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """One test's result."""

    test: str
    outcome: Outcome
    detail: str = ""


def read_list(path: Path = LIST_FILE) -> tuple[Mapping[str, Exclusion], tuple[str, ...]]:
    """Return the exclusions by test, and the files and tests of a quick run."""
    content = tomllib.loads(path.read_text("utf-8"))
    exclusions = [
        Exclusion(entry["test"], Expectation(entry.get("expect", Expectation.FAILS)), entry["reason"])
        for entry in content["excluded"]
    ]
    return {exclusion.test: exclusion for exclusion in exclusions}, tuple(content["quick"])


def read_report(path: Path) -> list[Result]:
    """Return the results of one process: of each collected test, in order, and of files that cannot be imported."""
    results: dict[str, Result] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        entry = json.loads(line)
        test = entry["test"].removeprefix("tests/")
        known = results.get(test)
        if entry["outcome"] == "collected":
            results[test] = Result(test, Outcome.NOT_RUN)
        elif known is None or known.outcome is not Outcome.FAILED:  # a failed tear-down counts, a passed one does not
            results[test] = Result(test, Outcome(entry["outcome"]), entry["detail"])
    return list(results.values())


def judge(result: Result, exclusion: Exclusion | None) -> Verdict:
    """Return what a result means under the list."""
    if result.outcome is Outcome.SKIPPED:
        return Verdict.SKIPPED
    if result.outcome is Outcome.PASSED:
        is_stale = exclusion is not None and exclusion.expectation is Expectation.FAILS
        return Verdict.STALE if is_stale else Verdict.PASSED
    return Verdict.FAILED if exclusion is None else Verdict.EXCLUDED


def unknown_exclusions(exclusions: Iterable[Exclusion], results: Iterable[Result]) -> list[str]:
    """Return the listed tests of the files that ran which these files do not have."""
    tests = {result.test for result in results}
    files = {test.partition("::")[0] for test in tests}
    return sorted(e.test for e in exclusions if e.test not in tests and e.test.partition("::")[0] in files)
