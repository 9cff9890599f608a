"""Where the Triton kernels' tests run: on a GPU, or on the CPU under Triton's interpreter."""

import os

import pytest
import torch


def triton_device() -> torch.device:
    """Return the device of the kernels' tensors; skip the module where there is none.

    Triton reads TRITON_INTERPRET when it is imported, so the interpreter needs a process of its own.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    pytest.skip("no GPU; test_triton_interpreter.py runs these tests without one", allow_module_level=True)
