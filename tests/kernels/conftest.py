"""Fixtures of the kernels' tests."""

from tests.compiled_kernels import kernels_folder
from tests.kernels.native_fixtures import native, two_threads
from tests.torch_threads import one_thread

__all__ = ["kernels_folder", "native", "one_thread", "two_threads"]
