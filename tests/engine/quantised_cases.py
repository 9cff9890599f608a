"""What config.json says of quantised checkpoints, and loading them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.linears import Numerics
from engine.model_loader import LoadedModel, load_model
from tests.engine.quantised_models import Stored, awq, by_row, gptq, in_blocks, packed, table, write_checkpoint
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import random_model

CPU = torch.device("cpu")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
BITSANDBYTES_4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
BITSANDBYTES_8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [20, 12]}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }


@dataclass(frozen=True)
class Case:
    """A format: how a weight is stored in it, and what config.json says."""

    quantise: Callable[[Tensor], Stored]
    config: dict[str, Any]
    name: str  # as a person is told
    model: str = field(default="llama")


PACKED_4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=16)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
CASES = {
    "awq": Case(awq, AWQ, "AWQ 4 bit"),
    "awq-biases": Case(awq, AWQ, "AWQ 4 bit", "qwen2"),
    "awq-one-group": Case(lambda weight: awq(weight, weight.shape[1]), AWQ | {"group_size": -1}, "AWQ 4 bit"),
    "awq-short-group": Case(functools.partial(awq, group_size=20), AWQ | {"group_size": 20}, "AWQ 4 bit"),
    "gptq": Case(gptq, GPTQ, "GPTQ 4 bit"),
    "gptq-symmetric": Case(functools.partial(gptq, symmetric=True), GPTQ, "GPTQ 4 bit"),
    "gptq-desc-act": Case(functools.partial(gptq, shuffled=True), GPTQ | {"desc_act": True}, "GPTQ 4 bit"),
    "gptq-v2": Case(functools.partial(gptq, version=2), GPTQ | {"checkpoint_format": "gptq_v2"}, "GPTQ 4 bit"),
    "gptq-no-index": Case(
        functools.partial(gptq, group_size=20, with_index=False), GPTQ | {"group_size": 20}, "GPTQ 4 bit"
    ),
    "gptq-2-bit": Case(functools.partial(gptq, bits=2), GPTQ | {"bits": 2}, "GPTQ 2 bit"),
    "gptq-8-bit": Case(functools.partial(gptq, bits=8), GPTQ | {"bits": 8, "dynamic": {"-:lm_head": {}}}, "GPTQ 8 bit"),
    "bitsandbytes-nf4": Case(table, BITSANDBYTES_4, "bitsandbytes 4 bit"),
    "bitsandbytes-fp4": Case(
        functools.partial(table, name="fp4", block=128),
        BITSANDBYTES_4 | {"bnb_4bit_quant_type": "fp4"},
        "bitsandbytes 4 bit",
    ),
    "bitsandbytes-nested": Case(functools.partial(table, nested=True), BITSANDBYTES_4, "bitsandbytes 4 bit"),
    "bitsandbytes-int8": Case(by_row, BITSANDBYTES_8, "bitsandbytes 8 bit"),
    "fp8": Case(lambda weight: in_blocks(weight, (20, 12), E4M3, "weight_scale_inv"), FP8, "FP8"),
    "fp8-bfloat16-scales": Case(
        lambda weight: in_blocks(weight, (20, 12), E4M3, "weight_scale_inv", torch.bfloat16), FP8, "FP8"
    ),
    "fp8-one-scale": Case(
        lambda weight: in_blocks(weight, (64, 64), E5M2, "weight_scale"), FP8 | {"weight_block_size": None}, "FP8"
    ),
    "float-quantized-channel": Case(
        lambda weight: in_blocks(weight, (1, 64), E4M3, "weight_scale", torch.bfloat16),
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        "compressed-tensors 8 bit float",
    ),
    "float-quantized-block": Case(
        lambda weight: in_blocks(weight, (20, 12), E4M3, "weight_scale"),
        compressed("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[20, 12]),
        "compressed-tensors 8 bit float",
    ),
    "int-quantized": Case(
        lambda weight: in_blocks(weight, (64, 64), torch.int8, "weight_scale"),
        compressed("int-quantized", num_bits=8, type="int", strategy="tensor"),
        "compressed-tensors 8 bit int",
    ),
    "naive-quantized": Case(
        lambda weight: in_blocks(weight, (1, 16), torch.int8, "weight_scale"),
        compressed("naive-quantized", num_bits=8, type="int", strategy="group", group_size=16),
        "compressed-tensors 8 bit int",
    ),
    "pack-quantized": Case(packed, PACKED_4, "compressed-tensors 4 bit int"),
    "pack-quantized-zeros": Case(
        functools.partial(packed, symmetric=False, group_size=12),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=12, symmetric=False),
        "compressed-tensors 4 bit int",
    ),
    "pack-quantized-ordered": Case(functools.partial(packed, ordered=True), PACKED_4, "compressed-tensors 4 bit int"),
    "pack-quantized-8-bit": Case(
        lambda weight: packed(weight, 8, weight.shape[1]),
        compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
        "compressed-tensors 8 bit int",
    ),
}


def load(folder: Path, dtype: torch.dtype = torch.float32, numerics: Numerics | None = None) -> LoadedModel:
    return load_model(
        str(folder),
        dtype=dtype,
        device=CPU,
        cache_dir=folder.parent / "cache",
        native_kernels=False,  # to be compiled for each test
        numerics=numerics or Numerics(),
    )


@pytest.fixture
def llama() -> PreTrainedModel:
    return random_model(SERVED["llama"]())


@pytest.fixture
def saved(llama: PreTrainedModel, tmp_path: Path) -> Path:
    """An AWQ checkpoint, whose weights `llama` has."""
    write_checkpoint(tmp_path / "model", llama, awq, AWQ)
    return tmp_path / "model"
