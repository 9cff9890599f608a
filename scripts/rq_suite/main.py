"""`scripts/rq-suite`: RQ's released tests against our worker, file by file, and what they say."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.rq_suite.environment import ADDRESS_VARIABLE, REPORT_VARIABLE, WORKER_VARIABLE, Which
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
from scripts.rq_suite.sdist import SuiteError, unpack_tests
from scripts.rq_suite.server import named_server, throw_away_server

REPOSITORY = Path(__file__).parents[2]
SITE = Path(__file__).with_name("site")
CACHE = Path(sys.prefix) / "rq-suite"
FILE_SECONDS = 600.0  # far above what any file takes on a busy machine
ROW = "{:<36} {:>7} {:>7} {:>8} {:>7} {:>7}"
BAD = frozenset({Verdict.FAILED, Verdict.STALE})


@dataclass(frozen=True, slots=True)
class Run:
    """Where and how the files of one run are run."""

    tests: Path
    address: str
    which: Which
    file_seconds: float


def run_selection(run: Run, selection: Sequence[str], left_out: Sequence[str]) -> list[Result]:
    """Run tests of one file in one process. What it had not run when it ended, or its time was up, is NOT_RUN."""
    report = run.tests.parent / "report.jsonl"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p"]
    command += ["scripts.rq_suite.reporting", *(f"tests/{item}" for item in selection)]
    command += [f"--deselect=tests/{test}" for test in left_out]
    with subprocess.Popen(
        command,
        cwd=run.tests.parent,
        env=_environment(run, report),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            process.wait(run.file_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        finally:
            _end_group(process.pid)
    return read_report(report)


def _environment(run: Run, report: Path) -> Mapping[str, str]:
    paths = (str(SITE), str(run.tests.parent), str(REPOSITORY))
    ours = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # rqworker
        ADDRESS_VARIABLE: run.address,
        WORKER_VARIABLE: run.which.value,
        REPORT_VARIABLE: str(report),
    }
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PAGEMILL_")}, **ours}


def _end_group(group: int) -> None:
    """End what the tests have left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_files(run: Run, selections: Mapping[str, Sequence[str]], exclusions: Mapping[str, Exclusion]) -> list[Result]:
    """Run the selected tests of each file; print a line per file."""
    print(ROW.format("file", *(verdict.value for verdict in Verdict)))
    everything = []
    not_run = [test for test, e in exclusions.items() if e.expectation is Expectation.NOT_RUN]
    for file, selection in selections.items():
        started = time.monotonic()
        left_out = [test for test in not_run if run.which is Which.PAGEMILL and test.startswith(f"{file}::")]
        results = run_selection(run, selection, left_out)
        if not results:
            results = [Result(file, Outcome.NOT_RUN, "pytest ended without collecting it")]
        results = try_again(run, results, exclusions)
        results += [Result(test, Outcome.NOT_RUN) for test in left_out if selection == [file] or test in selection]
        counts = Counter(judge(result, exclusions.get(result.test)) for result in results)
        seconds = time.monotonic() - started
        print(ROW.format(file, *(counts[verdict] for verdict in Verdict)), f"{seconds:7.1f} s", flush=True)
        everything += results
    return everything


def try_again(run: Run, results: Sequence[Result], exclusions: Mapping[str, Exclusion]) -> list[Result]:
    """Run the tests that failed once more, alone: many sleep for what should be long enough, and on a busy machine is
    not. What passes then says so."""
    failed = [r.test for r in results if r.outcome is Outcome.FAILED and r.test not in exclusions and "::" in r.test]
    if not failed:
        return list(results)
    second = {result.test: result for result in run_selection(run, failed, ())}
    passed = {test for test, result in second.items() if result.outcome is Outcome.PASSED}
    for test in sorted(passed):
        print(f"passed at the second try: {test}")
    return [replace(result, outcome=Outcome.PASSED) if result.test in passed else result for result in results]


def select(tests: Path, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return the wanted files and tests by file; all files where none is named. Raises SuiteError for unknown ones."""
    names = list(wanted) or sorted(path.name for path in tests.glob("test_*.py"))
    selections: dict[str, list[str]] = {}
    for name in names:
        file = name.partition("::")[0]
        if not (tests / file).is_file():
            raise SuiteError(f"{file}: RQ's tests have no such file")
        selections.setdefault(file, []).append(name)
    return selections


def summarise(results: Sequence[Result], exclusions: Mapping[str, Exclusion]) -> int:
    """Print the totals, what is excluded and why, and what is wrong. Returns the exit code."""
    judged = [(result, judge(result, exclusions.get(result.test))) for result in results]
    counts = Counter(verdict for _, verdict in judged)
    print(ROW.format("total", *(counts[verdict] for verdict in Verdict)))
    for result, verdict in judged:
        if verdict is Verdict.EXCLUDED:
            print(f"excluded: {result.test} ({result.outcome}): {exclusions[result.test].reason}")
    for result, verdict in judged:
        if verdict in BAD:
            print(f"{verdict.upper()}: {result.test} ({result.outcome})")
            if result.detail:
                print("    " + result.detail.replace("\n", "\n    "))
    unknown = unknown_exclusions(exclusions.values(), results)
    for test in unknown:
        print(f"UNKNOWN: {test} is excluded but does not exist")
    return 1 if unknown or any(verdict in BAD for _, verdict in judged) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/rq-suite", description=__doc__)
    parser.add_argument("tests", nargs="*", help="files, or file::class::test; all files by default")
    parser.add_argument("--quick", action="store_true", help="the files that say most, under a minute")
    parser.add_argument("--stock", action="store_true", help="RQ's own worker instead of ours, nothing excluded")
    parser.add_argument("--redis-url", help="a server of yours: empty databases from 4 on are used and flushed")
    parser.add_argument("--file-seconds", type=float, default=FILE_SECONDS, help="a file's time-out (%(default)g)")
    options = parser.parse_args(arguments)
    listed, quick = read_list()
    which = Which.STOCK if options.stock else Which.PAGEMILL
    exclusions = {} if options.stock else listed
    with tempfile.TemporaryDirectory(prefix="rq-suite-") as folder:
        try:
            tests = unpack_tests(Path(folder), CACHE)
            selections = select(tests, options.tests or (quick if options.quick else ()))
            server: AbstractContextManager[str] = (
                named_server(options.redis_url) if options.redis_url else throw_away_server(Path(folder))
            )
            with server as address:
                results = run_files(Run(tests, address, which, options.file_seconds), selections, exclusions)
        except SuiteError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return summarise(results, exclusions)


if __name__ == "__main__":
    sys.exit(main())
