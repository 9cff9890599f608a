"""Compiling the C kernels: once, whole, and not at all where there is nothing to compile with."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.native import building, toolchain
from kernels.native.building import FLAGS, FLAGS_OF, NativeBuild
from kernels.native.library import NativeKernels, TilesDenied
from kernels.native.toolchain import Products, find_compiler, is_supported, products_of_cpu
from tests.compiled_kernels import alone_in

COMPILE_SECONDS = 300.0
compiles = pytest.mark.skipif(
    not is_supported() or find_compiler() is None, reason="this machine cannot compile or run the C kernels"
)


@compiles
def test_a_compiled_file_is_found_again_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    (compiled,) = tmp_path.iterdir()
    assert compiled.suffix == ".so"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
        assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    assert [*tmp_path.iterdir()] == [compiled]
    compiled.unlink()
    compiled.write_bytes(b"\x7fELF cut short")
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is not None
    assert [*tmp_path.iterdir()] == [compiled]


@compiles
def test_files_that_nobody_loads_are_removed(tmp_path: Path) -> None:
    old, recent = tmp_path / "kernels-0.so", tmp_path / "kernels-1.so"
    for path, days in ((old, 31), (recent, 29)):
        path.touch()
        os.utime(path, times=(time.time() - days * 86400,) * 2)
    assert NativeBuild(tmp_path, Products.FLOATS).wait(COMPILE_SECONDS) is not None
    assert not old.exists()
    assert recent.exists()


@compiles
def test_each_kind_of_products_is_a_file_of_its_own(kernels_folder: Path) -> None:
    with alone_in(kernels_folder):
        for products in products_of_cpu():
            assert NativeBuild(kernels_folder, products).wait(COMPILE_SECONDS) is not None
    assert len(list(kernels_folder.glob("*.so"))) == len(products_of_cpu())


CPUS = {
    "no avx512": ("GenuineIntel", "avx2", ()),
    "ice lake": ("GenuineIntel", "avx512f avx512bw avx512dq avx512vl", ("floats",)),
    "zen 4": ("AuthenticAMD", "avx512f avx512bw avx512dq avx512vl avx512_bf16", ("dots", "floats")),
    "tiles hidden": ("GenuineIntel", "avx512f avx512bw avx512dq avx512vl avx512_bf16", ("floats", "dots")),
    "sapphire rapids": (
        "GenuineIntel",
        "avx512f avx512bw avx512dq avx512vl avx512_bf16 amx_bf16 amx_tile",
        ("tiles", "floats", "dots"),
    ),
}


@pytest.mark.parametrize(("vendor", "flags", "products"), CPUS.values(), ids=CPUS)
def test_products_of_processors(
    vendor: str, flags: str, products: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags} sse\n")
    monkeypatch.setattr(toolchain, "CPU_INFO", info)
    assert products_of_cpu() == products


@compiles
def test_without_permission_for_tiles_vectors_do_the_work(
    kernels_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(cache_dir: Path, flags: Sequence[str]) -> NativeKernels:
        if flags == (*FLAGS, *FLAGS_OF[Products.TILES]):
            raise TilesDenied("denied")
        return kernels

    with alone_in(kernels_folder):
        loaded = NativeBuild(kernels_folder, Products.FLOATS).wait(COMPILE_SECONDS)
    assert loaded is not None
    kernels = loaded
    monkeypatch.setattr(building, "products_of_cpu", lambda: tuple(Products))
    monkeypatch.setattr(building, "_load", load)
    assert NativeBuild(tmp_path).wait(COMPILE_SECONDS) is loaded


@compiles
def test_a_compiler_that_does_not_know_tiles_compiles_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GNU's before version 11: it refuses options that name them, too."""
    old = tmp_path / "gcc"
    refused = '*" -mno-amx-"* | *PRODUCTS_IN_TILES*) exit 1'
    old.write_text(f'#!/bin/sh\ncase " $*" in {refused};; esac\nexec {find_compiler()} "$@"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(building, "products_of_cpu", lambda: (Products.TILES, Products.FLOATS))
    kernels = NativeBuild(tmp_path / "cache").wait(COMPILE_SECONDS)
    assert kernels is not None
    assert kernels.row_tiles(16, 32).dtype is torch.float32  # what the second multiply


@pytest.mark.parametrize("compiler", ["missing", "broken"])
def test_without_a_compiler_there_are_none(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiler == "broken":
        (tmp_path / "cc").write_text('#!/bin/sh\necho Free Software Foundation\ntest "$1" = --version\n')
        (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(building, "products_of_cpu", lambda: (Products.FLOATS,))
    assert NativeBuild(tmp_path / "cache").wait(COMPILE_SECONDS) is None
