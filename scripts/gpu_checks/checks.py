"""Kernels against their oracles and the engine against transformers, on one device."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.model_loader import load_model
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import generate, make_engine, outputs_of, random_model, run

ROOT = Path(__file__).resolve().parents[2]
# Run at the same time: most of what they take is compilation.
KERNEL_TESTS = {
    "attention kernels": [f"tests/kernels/test_triton_{name}.py" for name in ("attention", "quantised", "static_plan")],
    "other kernels": [
        f"tests/kernels/test_triton_{name}.py" for name in ("cache", "copy", "layer_parts", "rotary", "sampling")
    ],
    "layers, sampler and CUDA graphs": ["tests/engine/test_triton_engine.py"],
}
MODELS = (
    "llama",
    "qwen3",
    "gpt2",
    "mistral-window",
    "gemma2-softcap",
    "gemma3",
    "gpt-oss",
    "mpt",
    "deepseek-v3",
    "gemma4",
)
# A template shared by all, so that prefixes are reused, and lengths on both sides of a block's.
PROMPTS = [[*range(10, 42), *tail] for tail in ([], [50, 51], list(range(60, 90)))] + [[5, 6, 7]]
NUM_TOKENS = 24
KERNEL_TIMEOUT_S = 180.0
LONGEST_DETAIL = 2000  # characters


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that agrees with its oracle or does not."""

    name: str
    passed: bool
    detail: str


def check_kernels() -> Iterator[Check]:
    """Yield a check a group of tests, each run in a process of its own."""
    with ThreadPoolExecutor(len(KERNEL_TESTS)) as pool:
        yield from pool.map(_run_tests, KERNEL_TESTS, KERNEL_TESTS.values())


def _run_tests(name: str, paths: Sequence[str]) -> Check:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", *paths]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=KERNEL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"not done after {KERNEL_TIMEOUT_S:.0f} s")
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    detail = lines[-1] if done.returncode == 0 else "\n".join(lines)[-LONGEST_DETAIL:]
    return Check(name, done.returncode == 0 and "skipped" not in lines[-1], detail)


def check_engine(device: torch.device, names: Sequence[str] = MODELS) -> Iterator[Check]:
    """Yield a check a model: greedy tokens in float32, batched on the device, against transformers' one by one."""
    for name in names:
        try:
            yield _check_model(name, device)
        except Exception as error:  # whatever a model raises there, the others are still worth knowing
            yield Check(name, False, f"{type(error).__name__}: {error}"[:LONGEST_DETAIL])


def _check_model(name: str, device: torch.device) -> Check:
    model = random_model(SERVED[name]())
    expected = [generate(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = load_model(folder, dtype=torch.float32, device=device, cache_dir=Path(folder) / "cache")
        found = outputs_of(run(make_engine(loaded), PROMPTS, NUM_TOKENS))
    different = sum(mine != theirs for mine, theirs in zip(found, expected, strict=True))
    return Check(name, different == 0, f"{different} of {len(PROMPTS)} outputs differ")
