"""Which kernels `kernels.ops` chooses, without a GPU: tensors of the meta device have a place and no content."""

import subprocess
import sys
from pathlib import Path

import torch

from kernels import ops
from kernels.cpu_plan import CpuPlan
from kernels.paged_batch import PagedBatch, PagedSequence
from kernels.triton_plan import TritonPlan

ROOT = Path(__file__).resolve().parents[2]
BATCH = PagedBatch((PagedSequence([3, 1], 20, 1), PagedSequence([2], 0, 5)), block_size=16)


def plan_on(device: str) -> ops.AttentionPlan:
    return ops.plan_attention(BATCH, num_heads=6, num_kv_heads=2, dtype=torch.bfloat16, device=torch.device(device))


def test_the_device_decides_on_the_plan() -> None:
    assert isinstance(plan_on("cpu"), CpuPlan)
    plan = plan_on("meta")
    assert isinstance(plan, TritonPlan)
    assert plan.tiles.device == plan.block_tables.device == torch.device("meta")
    assert plan.block_tables.shape == (2, 2)


def test_the_cpu_needs_no_triton() -> None:
    code = "from kernels import ops; import sys; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
