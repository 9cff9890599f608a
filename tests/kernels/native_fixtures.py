"""The C kernels as this machine compiles and runs them, in all that its processor can multiply in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.native.building import NativeBuild
from kernels.native.library import NativeKernels
from kernels.native.toolchain import Products, products_of_cpu
from tests.compiled_kernels import alone_in

COMPILE_SECONDS = 300.0


@pytest.fixture(scope="session", params=list(Products))
def native(request: pytest.FixtureRequest, kernels_folder: Path) -> NativeKernels:
    if request.param not in products_of_cpu():
        pytest.skip(f"this processor cannot multiply in {request.param}")
    with alone_in(kernels_folder):
        kernels = NativeBuild(kernels_folder, request.param).wait(COMPILE_SECONDS)
    if kernels is None:
        pytest.skip("this machine has no C compiler for it")
    return kernels


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
