"""What the C kernels need of a machine: a processor with the instructions, and a compiler. Imports no torch."""

import shutil
import subprocess
from pathlib import Path

COMPILERS = ("gcc", "cc")
# Others bring an OpenMP library of their own, whose threads would want the same cores.
MAKER = "Free Software Foundation"
VERSION_SECONDS = 10.0
INSTRUCTIONS = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16"})
CPU_INFO = Path("/proc/cpuinfo")


def cpu_flags() -> str:
    """Return the processor's features as Linux lists them; nothing where there is no such list."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def is_supported() -> bool:
    """Whether this processor has the instructions."""
    return frozenset(cpu_flags().split()) >= INSTRUCTIONS


def find_compiler() -> str | None:
    """Return the path of a GNU C compiler."""
    found = (path for name in COMPILERS if (path := shutil.which(name)))
    return next((path for path in found if _is_gnu(path)), None)


def _is_gnu(compiler: str) -> bool:
    try:
        told = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return False
    return MAKER in told.stdout
