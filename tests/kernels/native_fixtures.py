"""The C kernels as this machine compiles and runs them, in all that its processor can multiply in."""

from collections.abc import Iterator

import pytest
import torch

from kernels.native.building import NativeBuild
from kernels.native.library import NativeKernels
from kernels.native.toolchain import Products, products_of_cpu

COMPILE_SECONDS = 300.0


@pytest.fixture(scope="session", params=list(Products))
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    if request.param not in products_of_cpu():
        pytest.skip(f"this processor cannot multiply in {request.param}")
    folder = tmp_path_factory.mktemp("native")
    kernels = NativeBuild(folder, request.param).wait(COMPILE_SECONDS)
    if kernels is None:
        pytest.skip("this machine has no C compiler for it")
    return kernels


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
