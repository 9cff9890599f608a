"""The C kernels, compiled once for all tests of a run: that takes longer than most of them."""

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernels.native import building


@pytest.fixture(scope="session")
def kernels_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that keeps what was compiled, for all processes of a parallel run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled-kernels"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time compile into a folder; the next finds what it made."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def compiled_once(kernels_folder: Path) -> Iterator[None]:
    """A build into an empty folder copies what this run has compiled already, from the same sources and flags. Loading
    waits for the first one, however busy the machine: with it and without, models would be tested differently."""
    really_compile = building._compile

    def compile_once(compiler: str, flags: Sequence[str], openmp: Sequence[str], target: Path) -> None:
        kept = kernels_folder / target.name  # its name has a digest of all that it depends on
        with alone_in(kernels_folder):
            if not kept.exists():
                really_compile(compiler, flags, openmp, kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "_compile", compile_once)
        patched.setattr("engine.model_loader.NATIVE_SECONDS", building.COMPILE_SECONDS)
        yield
