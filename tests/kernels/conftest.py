"""Fixtures of the kernels' tests."""

from tests.kernels.native_fixtures import native, two_threads
from tests.torch_threads import one_thread

__all__ = ["native", "one_thread", "two_threads"]
