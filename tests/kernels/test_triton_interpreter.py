"""Runs the Triton kernels' tests under Triton's interpreter, in a process that imports Triton afresh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("attention", "cache", "copy", "layer_parts", "quantised", "rotary", "sampling", "static_plan")
MODULES = [f"tests/kernels/test_triton_{name}.py" for name in KERNELS] + ["tests/engine/test_triton_engine.py"]


@pytest.mark.parametrize("module", MODULES)
def test_kernels_equal_their_oracles_under_the_interpreter(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", module]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
