"""`scripts/check-kernels`, for one target."""

import os
import re
import subprocess
import sys
from pathlib import Path

from scripts.kernel_checks.cases import Kernel

ROOT = Path(__file__).resolve().parents[2]


def check_kernels(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script with this interpreter's environment."""
    return subprocess.run(
        [ROOT / "scripts" / "check-kernels", *arguments],
        env=os.environ | {"PAGEMILL_VENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_kernel_compiles_without_spills() -> None:
    done = check_kernels("--target", "sm_90")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^sm_90 +(\w+) .* (\d+) +0 +\d+  ok$", done.stdout, re.MULTILINE)
    assert {kernel for kernel, _ in rows} == set(Kernel)
    assert all(0 < int(registers) <= 255 for _, registers in rows)


def test_an_unknown_target_is_a_usage_error() -> None:
    done = check_kernels("--target", "sm_1")
    assert done.returncode == 2
    assert "invalid choice: 'sm_1'" in done.stderr
