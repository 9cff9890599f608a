"""`scripts/gpu-check`, what of it needs no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import reference
from kernels.score_rules import ScoreRules
from scripts.gpu_checks import benchmark
from scripts.gpu_checks.checks import KERNEL_TESTS, MODELS, check_engine
from tests.engine.tiny_configs import SERVED

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
    assert all((ROOT / path).is_file() for path in KERNEL_TESTS)


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
