"""Runs the Triton kernels' tests under Triton's interpreter, in a process that imports Triton afresh."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_kernels_equal_their_oracles_under_the_interpreter() -> None:
    names = ("attention", "cache", "copy", "layer_parts", "quantised", "rotary", "sampling", "static_plan")
    modules = [f"tests/kernels/test_triton_{name}.py" for name in names]
    modules.append("tests/engine/test_triton_engine.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *modules]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
