"""Compiling the C kernels: once a machine, source and compiler, then kept on disk.

They are plain C with OpenMP, so that no header of torch's is needed and compiling takes seconds. Where there is no
compiler, or none that knows the instructions, torch's own operators do the work: slower, no less right.
"""

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from kernels.native.library import NativeKernels, TilesDenied
from kernels.native.toolchain import COMPILERS, Products, cpu_flags, find_compiler, products_of_cpu

logger = logging.getLogger(__name__)

SOURCES = ("linear.c", "attention.c", "decoder_layer.c")
# No -ffast-math: what is not finite must stay so.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno", "-ffp-contract=off")
# Names of our own: an old compiler has no options that forbid instructions which it does not know.
FLAGS_OF: dict[Products, tuple[str, ...]] = {
    Products.TILES: ("-DPRODUCTS_IN_TILES",),
    Products.DOTS: (),
    Products.FLOATS: ("-DPRODUCTS_IN_FLOATS",),
}
COMPILE_SECONDS = 120.0  # a compiler that takes longer is given up
UNUSED_SECONDS = 30 * 86400.0  # compiled files that nobody has loaded for so long are removed


class NativeBuild:
    """A compilation in the background. `wait` gives what came of it."""

    def __init__(self, cache_dir: Path, products: Products | None = None) -> None:
        """`cache_dir` keeps the compiled file; only this user may be able to write there. The kernels multiply in
        `products`, or in what is fastest on this processor."""
        self._cache_dir = cache_dir
        self._products = products
        self._kernels: NativeKernels | None = None
        self._thread = Thread(target=self._build, name="native-build", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> NativeKernels | None:
        """Return the kernels; None where they cannot be had, or not so soon."""
        self._thread.join(seconds)
        return self._kernels

    def _build(self) -> None:
        usable = [products for products in products_of_cpu() if self._products in (None, products)]
        try:
            self._kernels = self._load(usable)
        except (OSError, subprocess.SubprocessError) as error:
            logger.info("no C kernels, torch's own operators are slower: %s", error)

    def _load(self, usable: Sequence[Products]) -> NativeKernels | None:
        """Return the kernels with the first products that the compiler knows and the system lets this process use."""
        for products in usable:
            try:
                return _load(self._cache_dir, (*FLAGS, *FLAGS_OF[products]))
            except (TilesDenied, subprocess.CalledProcessError) as error:
                logger.info("the C kernels cannot multiply in %s: %s", products, error)
        return None


def _load(cache_dir: Path, flags: Sequence[str]) -> NativeKernels:
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(f"none of the compilers {', '.join(COMPILERS)} is on the path")
    openmp = _loaded_openmp()
    target = cache_dir / f"kernels-{_digest(compiler, flags, openmp)}.so"
    if not target.exists() or (library := _opened(target)) is None:
        _compile(compiler, flags, openmp, target)
        library = ctypes.CDLL(str(target))
        _remove_unused(cache_dir)
    with suppress(OSError):
        os.utime(target)
    return NativeKernels(library)


def _remove_unused(cache_dir: Path) -> None:
    """Remove what older versions, or other machines with the same folder, compiled and no longer load."""
    for path in cache_dir.glob("kernels-*.so"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - UNUSED_SECONDS:
                path.unlink()


def _opened(target: Path) -> ctypes.CDLL | None:
    """Return a compiled file; None for a damaged one, which is made anew."""
    try:
        return ctypes.CDLL(str(target))
    except OSError:
        return None


def _compile(compiler: str, flags: Sequence[str], openmp: Sequence[str], target: Path) -> None:
    """Compile to `target`, which appears whole or not at all. Raises CalledProcessError, TimeoutExpired or OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(__file__).parent
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".compiling-") as scratch:
        partial = Path(scratch) / target.name
        sources = [str(folder / name) for name in SOURCES]
        command = [compiler, *flags, "-o", str(partial), *sources, *openmp, "-lm"]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILE_SECONDS)
        os.replace(partial, target)


def _digest(compiler: str, flags: Sequence[str], openmp: Sequence[str]) -> str:
    """Return a name for what the compiled file depends on."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted((*(folder / name for name in SOURCES), *folder.glob("*.h"))):
        digest.update(path.read_bytes())
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=COMPILE_SECONDS)
    digest.update(version.stdout)
    # What -march=native depends on: a home folder may be shared by unlike machines.
    digest.update(repr((flags, openmp, cpu_flags())).encode())
    return digest.hexdigest()[:16]


def _loaded_openmp() -> list[str]:
    """Return torch's own OpenMP library, to link with: a second one would have threads of its own on the same cores."""
    fields = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = {of_line[5] for of_line in fields if len(of_line) == 6}
    return sorted(path for path in paths if "libgomp" in path.rsplit("/", 1)[-1] and Path(path).exists())
