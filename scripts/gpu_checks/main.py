"""`scripts/gpu-check`: kernels and engine against their oracles on the GPU, then a benchmark, as one JSON document."""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from itertools import chain

import torch
import transformers
import triton

from scripts.gpu_checks import benchmark
from scripts.gpu_checks.checks import Check, check_engine, check_kernels
from scripts.gpu_checks.parts_benchmark import measure_parts

NO_GPU = 69  # exit code of a service that is unavailable


def main() -> int:
    """Run the checks and return the exit code."""
    argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__).parse_args()
    if not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} finds no GPU on this machine", file=sys.stderr)
        return NO_GPU
    device = torch.device("cuda")
    started = time.monotonic()
    checks: list[Check] = []
    for check in chain(check_kernels(), check_engine(device)):
        checks.append(check)
        say(check)
    document = {
        "device": torch.cuda.get_device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "transformers": transformers.__version__,
        },
        "checks": [asdict(check) for check in checks],
        "benchmark": benchmark.measure(device) | measure_parts(device),
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(document, indent=2))
    return 0 if all(check.passed for check in checks) else 1


def say(check: Check) -> None:
    print(f"{check.name}: {'ok' if check.passed else 'FAILED'} {check.detail}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
