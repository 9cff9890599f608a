"""Quantised checkpoints that are not what we can dequantise are refused, in a line that says what is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.model_loader import ModelNotFound
from tests.engine.quantised_cases import AWQ, BITSANDBYTES_4, E4M3, FP8, GPTQ, PACKED_4, compressed, llama, load, saved
from tests.engine.quantised_models import awq, gptq, in_blocks, save, table, write_checkpoint
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import random_model

__all__ = ["llama", "saved"]


def assert_refused(folder: Path, reason: str, error: type[Exception] = UnsupportedModel) -> None:
    with pytest.raises(error, match=reason) as raised:
        load(folder)
    assert "\n" not in str(raised.value)
    cache_dir = folder.parent / "cache"
    assert not cache_dir.exists() or list(cache_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"quant_method": "modelopt"}, "by 'modelopt'; supported are awq, bits"),
        ({"quant_method": "bitsandbytes"}, "load_in_4bit False and load_in_8bit False; one of them is needed"),
        (BITSANDBYTES_4 | {"load_in_8bit": True}, "load_in_4bit True and load_in_8bit True; one of them is needed"),
        (BITSANDBYTES_4 | {"bnb_4bit_quant_type": "af4"}, "with bnb_4bit_quant_type 'af4'; supported is nf4 or fp4"),
        (BITSANDBYTES_4 | {"bnb_4bit_quant_storage": "bfloat16"}, "with bnb_4bit_quant_storage 'bfloat16'"),
        ({"load_in_8bit": True}, "by None; supported are"),
        (AWQ | {"bits": 3}, "by awq with bits 3; supported is 4"),
        (AWQ | {"version": "gemv"}, "by awq with version 'gemv'; supported is gemm"),
        (AWQ | {"zero_point": False}, "by awq with zero_point False; supported is True"),
        (AWQ | {"group_size": 0}, "by awq with group_size 0; supported is a number of at least 1"),
        (GPTQ | {"bits": 3}, "by gptq with bits 3; supported is 2 or 4 or 8"),
        (
            GPTQ | {"checkpoint_format": "marlin"},
            "by gptq with checkpoint_format 'marlin'; supported is gptq or gptq_v2",
        ),
        (GPTQ | {"dynamic": {"+:.*up": {"bits": 8}}}, "by gptq with dynamic settings"),
        (FP8 | {"weight_block_size": [128]}, r"by fp8 with the size of its blocks \[128\]"),
        (
            compressed("nvfp4-pack-quantized", num_bits=4, type="float"),
            "with format 'nvfp4-pack-quantized'; supported is",
        ),
        (compressed("pack-quantized", num_bits=3, type="int"), "with num_bits 3; supported is 4 or 8"),
        (compressed("float-quantized", num_bits=8, type="float", strategy="token"), "with strategy 'token'; supported"),
        (PACKED_4 | {"transform_config": {"a": 1}}, "with transform_config {'a': 1}"),
        (PACKED_4 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "with sparsity_config 'sparse-24-bitmask'"),
        (PACKED_4 | {"config_groups": {}}, "in 0 ways; one is supported"),
        (PACKED_4 | {"config_groups": [1]}, "quantization_config, of compressed-tensors, is malformed: 'list' object"),
    ],
)
def test_what_is_unknown_is_refused(saved: Path, quantization: object, reason: str) -> None:
    change_config(saved, quantization_config=quantization)
    assert_refused(saved, reason)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


DOWN = "model.layers.1.mlp.down_proj"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda tensors: tensors.pop(f"{DOWN}.scales"),
            "tensor '.*down_proj.qweight' stands without '.*down_proj.scales'",
        ),
        (
            lambda tensors: tensors.pop(f"{DOWN}.qweight"),
            "tensor '.*down_proj.qzeros', .*, belongs to no quantised weight",
        ),
        (lambda tensors: tensors.update({"act.scales": torch.ones(3)}), "'act.scales', .*, belongs to no quantised"),
        (
            lambda tensors: tensors.update({f"{DOWN}.scales": torch.ones(3, 8)}),
            r"down_proj.weight' is not AWQ.*\[3, 8\]; a weight",
        ),
        (
            lambda tensors: tensors.update({"x.weight": torch.ones(3, 8).to(E4M3)}),
            "'x.weight', torch.float8_e4m3fn, bel",
        ),
        (lambda tensors: tensors.update({f"{DOWN}.qweight": torch.ones(48, 4)}), "packed numbers are torch.float32"),
        (
            lambda tensors: tensors.update({f"{DOWN}.bias": torch.ones(32)}),
            "bias '.*down_proj.bias' is none of the model",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    saved: Path, change: Callable[[dict[str, Tensor]], object], reason: str
) -> None:
    tensors = load_file(saved / "model.safetensors")
    change(tensors)
    save(saved, tensors)
    with pytest.raises(UnsupportedModel, match=reason):
        load(saved)


def test_biases_of_nothing_are_let_be(saved: Path) -> None:
    save(saved, load_file(saved / "model.safetensors") | {f"{DOWN}.bias": torch.zeros(32)})
    load(saved)


def test_column_groups_beyond_the_scales(llama: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, llama, gptq, GPTQ)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{DOWN}.g_idx"][0] = 3
    save(folder, tensors)
    assert_refused(folder, "a column's group is beyond the 3 groups")


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"blocksize": 0}, "24 scales of blocks of 0 for 1536 elements"),
        ({"blocksize": 10**15}, "24 scales of blocks of 1000000000000000 for 1536"),
        ({"shape": [10**6, 10**6]}, "shape .* is invalid for input of size 1536"),
        ({"shape": None}, "'NoneType' object is not iterable"),
    ],
)
def test_states_of_bitsandbytes_that_are_wrong(
    facts: dict[str, object], reason: str, llama: PreTrainedModel, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, llama, table, BITSANDBYTES_4)
    tensors, name = load_file(folder / "model.safetensors"), f"{DOWN}.weight.quant_state.bitsandbytes__nf4"
    state = json.loads(bytes(tensors[name].tolist())) | facts
    tensors[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    save(folder, tensors)
    with pytest.raises(UnsupportedModel, match=f"is not bitsandbytes 4 bit: its numbers, .*{reason}"):
        load(folder)


def test_scales_that_the_config_does_not_tell_of(llama: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, llama, lambda weight: in_blocks(weight, (64, 64), E4M3, "weight_scale"), {})
    change_config(folder, quantization_config=None)
    assert_refused(folder, r"'.*\.weight_scale' is of quantised weights, of which its config says nothing")


def test_weights_that_are_not_quantised_as_said(llama: PreTrainedModel, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path / "model")
    change_config(tmp_path / "model", quantization_config=AWQ)
    assert_refused(tmp_path / "model", "says AWQ 4 bit, but none of its weights is quantised so")


def test_layers_of_another_kind_are_not_transposed_silently(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model = random_model(SERVED["gpt2"]())  # its weights are [num_columns, num_outputs]
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    name = "transformer.h.0.attn.c_attn"
    stored = gptq(tensors.pop(f"{name}.weight").t())
    save(folder, tensors | {f"{name}.{suffix}": part for suffix, part in stored.tensors.items()})
    (folder / "config.json").write_text(json.dumps(model.config.to_dict() | {"quantization_config": GPTQ}), "utf-8")
    with pytest.raises(ModelNotFound, match="cannot be loaded"):
        load(folder)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_files_cut_short(saved: Path, share: float) -> None:
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert_refused(saved, "model' cannot be loaded: .", ModelNotFound)


def test_a_file_that_is_missing(llama: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_checkpoint(folder, llama, awq, AWQ, num_files=3)
    (folder / "model-1.safetensors").unlink()
    assert_refused(folder, "its file model-1.safetensors is missing", ModelNotFound)


def test_a_write_that_fails_leaves_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.quantised_checkpoints.save_file", fail)
    assert_refused(saved, "model' cannot be loaded: .*No space left on device", ModelNotFound)
