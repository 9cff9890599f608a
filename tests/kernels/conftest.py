"""Fixtures of the kernels' tests."""

from tests.torch_threads import one_thread

__all__ = ["one_thread"]
