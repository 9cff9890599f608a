"""Runs the Triton kernels' tests under Triton's interpreter, in a process that imports Triton afresh."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("attention", "cache", "copy", "layer_parts", "quantised", "rotary", "sampling", "static_plan")
MODULES = [f"tests/kernels/test_triton_{name}.py" for name in KERNELS] + ["tests/engine/test_triton_engine.py"]
WRONG = ("failure", "error", "skipped")
# The interpreter takes NumPy's matrix products for a GPU's. With OpenBLAS's kernels for Haswell and Zen a row's bits
# depend on how many rows there are, with these they do not, as on a GPU; any processor since 2011 can run them.
ENVIRON = {"TRITON_INTERPRET": "1", "OPENBLAS_CORETYPE": "Sandybridge"}


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What became of all modules' tests."""

    cases: list[ElementTree.Element]
    exit_code: int
    printed: str

    def cases_of(self, module: str) -> list[ElementTree.Element]:
        name = module.removesuffix(".py").replace("/", ".")
        return [case for case in self.cases if case.get("classname") == name]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """All modules run in one process: to import torch and transformers takes longer than most modules' tests."""
    path = tmp_path_factory.mktemp("interpreter") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={path}", *MODULES]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRON, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert path.exists(), printed
    return Report(list(ElementTree.parse(path).iter("testcase")), done.returncode, printed)


@pytest.mark.parametrize("module", MODULES)
def test_kernels_equal_their_oracles_under_the_interpreter(report: Report, module: str) -> None:
    cases = report.cases_of(module)
    assert cases, report.printed
    wrong = [case.get("name") for case in cases if any(case.find(outcome) is not None for outcome in WRONG)]
    assert wrong == [], report.printed


def test_nothing_else_went_wrong(report: Report) -> None:
    """Modules that cannot be imported, warnings that are errors, fixtures that outlive the tests."""
    told = sum(len(report.cases_of(module)) for module in MODULES)
    assert told == len(report.cases), report.printed
    assert report.exit_code == 0, report.printed
