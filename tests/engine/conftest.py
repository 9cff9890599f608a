"""Fixtures of the engine's tests."""

import pytest

from tests.compiled_kernels import compiled_once, kernels_folder
from tests.torch_threads import one_thread

__all__ = ["compiled_once", "kernels_folder", "one_thread"]


@pytest.fixture(autouse=True, scope="module")
def _compiled_once(compiled_once: None) -> None:
    """Models in bfloat16 are loaded with a folder of their own each."""
