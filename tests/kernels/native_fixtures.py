"""The C kernels as this machine compiles and runs them: with the processor's matrix tiles, where it has them, and with
vectors."""

from collections.abc import Iterator

import pytest
import torch

from kernels.native.building import NativeBuild
from kernels.native.library import NativeKernels
from kernels.native.toolchain import is_supported

COMPILE_SECONDS = 300.0


@pytest.fixture(scope="session", params=["tiles", "vectors"])
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    if not is_supported():
        pytest.skip("this processor has no AVX-512 bfloat16")
    folder = tmp_path_factory.mktemp("native")
    kernels = NativeBuild(folder, uses_tiles=request.param == "tiles").wait(COMPILE_SECONDS)
    if kernels is None:
        pytest.skip("this machine has no C compiler for it")
    return kernels


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
