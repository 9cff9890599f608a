"""The model that the benchmarks measure."""

import subprocess
import sys
from pathlib import Path


def fetch_model() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct, fetched where it is missing."""
    printed = subprocess.run([sys.executable, "scripts/fetch-model"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(printed.stdout.strip().splitlines()[-1])
