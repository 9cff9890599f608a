"""Fixtures of the engine's tests."""

from tests.torch_threads import one_thread

__all__ = ["one_thread"]
