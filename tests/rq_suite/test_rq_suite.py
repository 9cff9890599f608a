"""RQ's own tests: some of them at each run, all of them with scripts/rq-suite; and how their results are judged."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.rq_suite import main as suite
from scripts.rq_suite.environment import Which
from scripts.rq_suite.results import (
    Exclusion,
    Expectation,
    Outcome,
    Result,
    Verdict,
    judge,
    read_list,
    read_report,
    unknown_exclusions,
)
from scripts.rq_suite.sdist import SuiteError
from tests.services import missing_service

pytestmark = pytest.mark.long

TEST = "test_a.py::TestA::test_one"


def test_quick_run_passes(capsys: pytest.CaptureFixture[str]) -> None:
    code = suite.main(["--quick"])
    printed = capsys.readouterr()
    if "cannot download" in printed.err:
        missing_service(printed.err.strip())
    assert code == 0, printed.out + printed.err
    total = next(line.split() for line in printed.out.splitlines() if line.startswith("total"))
    assert int(total[1]) > 50


def test_each_exclusion_has_its_reason() -> None:
    exclusions, quick = read_list()
    assert 0 < len(exclusions) <= 15
    for exclusion in exclusions.values():
        file, case, test = exclusion.test.split("::")
        assert file.endswith(".py")
        assert case.startswith(("Test", "Worker"))
        assert test.startswith("test_")
        assert len(exclusion.reason.split()) > 8
    assert quick


@pytest.mark.parametrize(
    ("outcome", "expectation", "verdict"),
    [
        (Outcome.PASSED, None, Verdict.PASSED),
        (Outcome.FAILED, None, Verdict.FAILED),
        (Outcome.NOT_RUN, None, Verdict.FAILED),
        (Outcome.SKIPPED, None, Verdict.SKIPPED),
        (Outcome.FAILED, Expectation.FAILS, Verdict.EXCLUDED),
        (Outcome.PASSED, Expectation.FAILS, Verdict.STALE),
        (Outcome.NOT_RUN, Expectation.NOT_RUN, Verdict.EXCLUDED),
        (Outcome.PASSED, Expectation.FLAKY, Verdict.PASSED),
        (Outcome.FAILED, Expectation.FLAKY, Verdict.EXCLUDED),
    ],
)
def test_verdicts(outcome: Outcome, expectation: Expectation | None, verdict: Verdict) -> None:
    exclusion = None if expectation is None else Exclusion(TEST, expectation, "because")
    assert judge(Result(TEST, outcome), exclusion) is verdict


def write(path: Path, *entries: tuple[str, str]) -> Path:
    """Write a report as the plugin does."""
    lines = [json.dumps({"test": f"tests/{test}", "outcome": outcome, "detail": ""}) for test, outcome in entries]
    path.write_text("\n".join(lines))
    return path


def test_report_of_a_process_that_died(tmp_path: Path) -> None:
    """What it had collected and not run is no pass; nor is a test whose tear-down failed."""
    names = [f"test_a.py::TestA::test_{number}" for number in range(4)]
    collected = [(name, "collected") for name in names]
    ran = [(names[0], "passed"), (names[1], "passed"), (names[1], "failed"), (names[2], "failed"), (names[2], "passed")]
    report = write(tmp_path / "report", *collected, *ran)
    assert [result.outcome for result in read_report(report)] == [
        *(Outcome.PASSED, Outcome.FAILED, Outcome.FAILED, Outcome.NOT_RUN)
    ]
    assert read_report(tmp_path / "never written") == []


def test_exclusion_of_a_test_that_is_gone_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    exclusions = {test: Exclusion(test, Expectation.FAILS, "because") for test in (TEST, "test_b.py::TestB::test_one")}
    results = [Result("test_a.py::TestA::test_two", Outcome.PASSED)]
    assert unknown_exclusions(exclusions.values(), results) == [TEST]
    assert suite.summarise(results, exclusions) == 1
    assert f"UNKNOWN: {TEST}" in capsys.readouterr().out


def test_failed_tests_are_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only those, and only once; what is excluded is not."""
    names = [f"test_a.py::TestA::test_{number}" for number in range(4)]
    outcomes = (Outcome.PASSED, Outcome.FAILED, Outcome.FAILED, Outcome.FAILED)
    tried = []

    def run_selection(run: suite.Run, selection: Sequence[str], left_out: Sequence[str]) -> list[Result]:
        tried.append(list(selection))
        return [Result(names[1], Outcome.PASSED), Result(names[2], Outcome.FAILED)]

    monkeypatch.setattr(suite, "run_selection", run_selection)
    run = suite.Run(tmp_path, "localhost:1", Which.PAGEMILL, 1.0)
    first = [Result(name, outcome) for name, outcome in zip(names, outcomes, strict=True)]
    exclusions = {names[3]: Exclusion(names[3], Expectation.FAILS, "because")}
    results = suite.try_again(run, first, exclusions)
    assert tried == [names[1:3]]
    assert [result.outcome for result in results] == [*(Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.FAILED)]
    assert capsys.readouterr().out == f"passed at the second try: {names[1]}\n"


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.PASSED, 1), (Outcome.FAILED, 0)])
def test_stale_exclusion_fails_the_run(outcome: Outcome, code: int) -> None:
    exclusions = {TEST: Exclusion(TEST, Expectation.FAILS, "because")}
    assert suite.summarise([Result(TEST, outcome)], exclusions) == code


def test_selection_by_file_and_test(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py", "fixtures.py"):
        (tmp_path / name).touch()
    assert suite.select(tmp_path, ()) == {"test_a.py": ["test_a.py"], "test_b.py": ["test_b.py"]}
    assert suite.select(tmp_path, (TEST, "test_a.py::TestA::test_two")) == {
        "test_a.py": [TEST, "test_a.py::TestA::test_two"]
    }
    with pytest.raises(SuiteError, match="no such file"):
        suite.select(tmp_path, ("test_c.py",))
