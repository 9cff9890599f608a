"""`scripts/check-kernels`: compile the kernels for every target, print what each needs, fail where one does not fit."""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

import triton

from scripts.kernel_checks.cases import TARGETS, Case, all_cases, representative_cases
from scripts.kernel_checks.compilation import CompileError, Resources, compile_case

COLUMNS = "{:<7} {:<13} {:>6} {:>5} {:>5} {:>5} {:>4} {:<6} {:>9} {:>7} {:>7}  {}"
HEADINGS = (
    "target",
    "kernel",
    "width",
    "block",
    "dtype",
    "group",
    "rows",
    "form",
    "registers",
    "spilled",
    "shared",
    "result",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case's resources, and why it fails, if it does."""

    case: Case
    resources: Resources | None
    failure: str | None


def check(case: Case) -> Outcome:
    """Compile a case and hold it against its target."""
    try:
        resources = compile_case(case)
    except CompileError as error:
        return Outcome(case, None, str(error))
    limit = TARGETS[case.target].shared_limit_bytes
    failure = None
    if resources.spilled_bytes:
        failure = f"spills {resources.spilled_bytes} bytes a thread"
    elif resources.shared_bytes > limit:
        failure = f"needs {resources.shared_bytes} bytes of shared memory; {case.target} has {limit}"
    return Outcome(case, resources, failure)


def check_all(cases: Iterable[Case]) -> Iterator[Outcome]:
    """Yield the cases' outcomes in order, compiling on all CPUs."""
    processes = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        submitted = [(case, pool.submit(check, case)) for case in cases]
        for case, future in submitted:
            try:
                yield future.result()
            except BrokenProcessPool:
                yield Outcome(case, None, "a compiler crashed, on this case or one beside it")


def row(outcome: Outcome) -> str:
    """Return an outcome's line of the table."""
    case, resources = outcome.case, outcome.resources
    configuration = (case.width, case.block_size, case.dtype, case.queries_per_kv_head, case.tile_rows, case.form)
    needs = (resources.registers, resources.spilled_bytes, resources.shared_bytes) if resources else ("-", "-", "-")
    return COLUMNS.format(case.target, case.kernel, *configuration, *needs, outcome.failure or "ok")


def main() -> int:
    """Run the check and return its exit code."""
    parser = argparse.ArgumentParser(prog="scripts/check-kernels", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="only this target; may be repeated")
    parser.add_argument("--all", action="store_true", help="every configuration, not the representative ones")
    options = parser.parse_args()
    enumerate_cases = all_cases if options.all else representative_cases
    cases = [case for target in options.target or TARGETS for case in enumerate_cases(target)]
    started = time.monotonic()
    print(COLUMNS.format(*HEADINGS))
    failures = 0
    for outcome in check_all(cases):
        print(row(outcome), flush=True)
        failures += outcome.failure is not None
    seconds = time.monotonic() - started
    print(f"Triton {triton.__version__}: {len(cases)} compiled in {seconds:.0f} s, {failures} failed; none was run")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
