"""What the C kernels need of a machine: a processor with the instructions, and a compiler. Imports no torch."""

import shutil
import subprocess
from enum import StrEnum
from pathlib import Path

COMPILERS = ("gcc", "cc")
# Others bring an OpenMP library of their own, whose threads would want the same cores.
MAKER = "Free Software Foundation"
VERSION_SECONDS = 10.0
INSTRUCTIONS = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
TILE_INSTRUCTIONS = frozenset({"amx_tile", "amx_bf16"})
DOT_INSTRUCTIONS = frozenset({"avx512_bf16"})
INTEL = "GenuineIntel"
CPU_INFO = Path("/proc/cpuinfo")


class Products(StrEnum):
    """How the kernels multiply: see `tiles.h`."""

    TILES = "tiles"  # in matrix tiles (AMX)
    DOTS = "dots"  # in AVX-512 dot products of bfloat16
    FLOATS = "floats"  # in AVX-512 products of float32


def cpu_flags() -> str:
    """Return the processor's features as Linux lists them; nothing where there is no such list."""
    return _cpu_info("flags")


def _cpu_info(name: str) -> str:
    """Return the first line of a name."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(name)), "")


def products_of_cpu() -> tuple[Products, ...]:
    """Return what this processor can multiply in, the fastest first; nothing if it cannot run the kernels."""
    has = frozenset(cpu_flags().split())
    if not has >= INSTRUCTIONS:
        return ()
    dots = [Products.DOTS] if has >= DOT_INSTRUCTIONS else []
    # AMD's dot product of bfloat16 takes as long as a product of float32, with twice as many elements. Intel's (Emerald
    # Rapids, its tiles hidden by the hypervisor) takes 4.4 times as long.
    vectors = [Products.FLOATS, *dots] if INTEL in _cpu_info("vendor_id") else [*dots, Products.FLOATS]
    return (Products.TILES, *vectors) if has >= TILE_INSTRUCTIONS else tuple(vectors)


def is_supported() -> bool:
    """Whether this processor can run the kernels."""
    return bool(products_of_cpu())


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
