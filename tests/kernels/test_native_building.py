"""Compiling the C kernels: once, whole, and not at all where there is nothing to compile with."""

from pathlib import Path

import pytest

from kernels.native import building
from kernels.native.building import NativeBuild
from kernels.native.toolchain import find_compiler, is_supported

COMPILE_SECONDS = 300.0
compiles = pytest.mark.skipif(
    not is_supported() or find_compiler() is None, reason="this machine cannot compile or run the C kernels"
)


@compiles
def test_a_compiled_file_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


@compiles
def test_a_damaged_file_is_compiled_again(tmp_path: Path) -> None:
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    (compiled,) = tmp_path.iterdir()
    compiled.unlink()
    compiled.write_bytes(b"\x7fELF cut short")
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None


@compiles
def test_with_and_without_tiles_are_different_files(tmp_path: Path) -> None:
    for uses_tiles in (True, False):
        assert NativeBuild(tmp_path, uses_tiles=uses_tiles).wait(COMPILE_SECONDS) is not None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("compiler", ["missing", "broken"])
def test_without_a_compiler_there_are_none(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler == "broken":
        (tmp_path / "cc").write_text('#!/bin/sh\necho Free Software Foundation\ntest "$1" = --version\n')
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "is_supported", lambda: True)
    assert NativeBuild(tmp_path / "cache").wait(COMPILE_SECONDS) is None
