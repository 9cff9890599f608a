"""Fixtures that several areas of tests share."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("sqlalchemy") is not None:  # a machine for the kernels and the engine alone has none
    pytest_plugins = ["tests.services"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The path of the real model's GGUF file, fetched on first use."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch-model")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
