"""`scripts/gpu-check`, what of it needs no GPU."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.cuda_graphs import bucket_for
from engine.paged_model import PagedModel
from kernels import ops, reference
from kernels.score_rules import ScoreRules
from scripts.gpu_checks import benchmark, parts_benchmark, steps_benchmark
from scripts.gpu_checks.checks import KERNEL_TESTS, MODELS, check_engine
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import random_model
from tests.kernels.test_triton_interpreter import MODULES as TRITON_MODULES

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.gpu_checks.main"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 69
    assert done.stdout == ""
    assert done.stderr == f"gpu-check: torch {torch.__version__} finds no GPU on this machine\n"


def test_a_model_agrees_with_transformers() -> None:
    (check,) = check_engine(CPU, ["gemma3"])
    assert check.passed, check


def test_a_model_that_fails_is_a_failed_check() -> None:
    (check,) = check_engine(CPU, ["no-such-model"])
    assert (check.passed, check.detail) == (False, "KeyError: 'no-such-model'")


def test_its_models_and_tests_are_there() -> None:
    assert set(MODELS) <= set(SERVED)
    paths = [path for group in KERNEL_TESTS.values() for path in group]
    assert all((ROOT / path).is_file() for path in paths)
    assert set(TRITON_MODULES) == set(paths)


def test_what_is_timed_is_attention() -> None:
    work = benchmark.workload(benchmark.decodes(3, 100, 64), torch.float32, CPU)
    rules = ScoreRules(benchmark.HEAD_DIM**-0.5)
    expected = reference.paged_attention(work.query, work.key_cache, work.value_cache, work.batch, rules)
    torch.testing.assert_close(benchmark.attend(work)(), expected)


def test_decodes_share_their_prefix_only() -> None:
    sequences = benchmark.decodes(3, 100, 64)
    prefixes = {tuple(sequence.block_ids[:4]) for sequence in sequences}
    own = [block for sequence in sequences for block in sequence.block_ids[4:]]
    assert len(prefixes) == 1
    assert len(own) == len(set(own)) == 9
    work = benchmark.workload(sequences, torch.float16, CPU)
    assert work.kv_bytes == 3 * 100 * 2 * benchmark.NUM_KV_HEADS * benchmark.HEAD_DIM * 2


def test_what_the_parts_are_held_against_does_the_same() -> None:
    """And the shapes are right: the kernels themselves have tests of their own."""
    torch.manual_seed(0)
    found = {pair.name: pair.theirs() for pair in parts_benchmark.pairs(CPU, rows=2, dtype=torch.float32)}
    torch.manual_seed(0)
    with torch.inference_mode():
        expected = {pair.name: by_oracle(pair.ours) for pair in parts_benchmark.pairs(CPU, rows=2, dtype=torch.float32)}
    for name, result in expected.items():
        torch.testing.assert_close(found[name], result, rtol=1e-5, atol=1e-5)


def by_oracle(ours: Callable[[], object]) -> object:
    """Return what the oracle makes of a kernel's inputs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("silu_mul", "draw"):
            patch.setattr(ops, name, getattr(reference, name))
        patch.setattr(ops, "add_rms_norm", lambda *arguments: reference.add_rms_norm(*arguments)[0])
        patch.setattr(ops, "rotate_and_store", rotated_queries)
        return ours()


def rotated_queries(qkv: Tensor, num_heads: int, *arguments: Any) -> Tensor:
    reference.rotate_and_store(qkv, num_heads, *arguments)
    return qkv[:, :num_heads]


def test_the_timed_step_decodes() -> None:
    plan = parts_benchmark.decode_plan(3, 50)
    assert bucket_for(plan.scheduled) == 4
    blocks = [block for share in plan.scheduled for block in share.request.block_tables[0].block_ids]
    assert len(blocks) == len(set(blocks)) == 12
    assert all(share.samples for share in plan.scheduled)


def test_the_timed_steps_are_an_engines() -> None:
    model = PagedModel(random_model(SERVED["llama"]()))
    figures = steps_benchmark.measure_steps(model, num_requests=3, output_tokens=6)
    ways = ("", "replaced_", "penalized_")
    assert set(figures) == {"speedup", *(f"{way}{name}" for way in ways for name in ("ms", "idle"))}
    assert figures["speedup"] == figures["replaced_ms"] / figures["ms"]
    assert all(figures[f"{way}idle"] == 1.0 for way in ways)  # of a GPU that does not take part
