"""Quantised checkpoints: each format's weights are what its numbers stand for, and what is unknown is refused."""

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GptOssConfig, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.attention_layers import UnsupportedModel
from engine.checkpoint_files import CheckpointFiles
from engine.dequantising import dequantise
from engine.linears import Numerics, Weights, has_int8
from engine.model_loader import LoadedModel, ModelNotFound, load_model
from engine.quantisation_config import read_quantisation
from engine.self_test_record import FOLDER_NAME
from tests.engine.quantised_models import Stored, awq, gptq, in_blocks, mxfp4, packed, save, write_checkpoint
from tests.engine.tiny_configs import SERVED, SIZES
from tests.engine.tiny_models import generate, make_engine, outputs_of, random_model, run

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7], list(range(10, 40)), [90]]
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
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


def converted(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the only converted folder."""
    (made,) = [path for path in (folder.parent / "cache").iterdir() if path.name != FOLDER_NAME]
    with CheckpointFiles(str(made)) as files:
        return {name: files.read(name) for name in files.names}


def assert_refused(folder: Path, reason: str, error: type[Exception] = UnsupportedModel) -> None:
    with pytest.raises(error, match=reason) as raised:
        load(folder)
    assert "\n" not in str(raised.value)
    cache_dir = folder.parent / "cache"
    assert not cache_dir.exists() or list(cache_dir.iterdir()) == []


@pytest.fixture
def llama() -> PreTrainedModel:
    return random_model(SERVED["llama"]())


@pytest.fixture
def saved(llama: PreTrainedModel, tmp_path: Path) -> Path:
    """An AWQ checkpoint, whose weights `llama` has."""
    write_checkpoint(tmp_path / "model", llama, awq, AWQ)
    return tmp_path / "model"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_and_outputs_are_those_of_the_numbers(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(SERVED[case.model]()).to(dtype)  # type: ignore[arg-type]  # nn.Module.to, hidden
    write_checkpoint(tmp_path / "model", model, case.quantise, case.config, num_files=3)
    loaded = load(tmp_path / "model", dtype)
    assert loaded.weights == f"{case.name}, dequantised to {str(dtype).removeprefix('torch.')}"
    assert loaded.identity.stop_token_ids == {2}
    weights, expected = converted(tmp_path / "model"), model.state_dict()
    assert weights.keys() == expected.keys()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []
    assert {weight.dtype for weight in weights.values()} == {dtype}
    if dtype is torch.float32:
        tokens = [generate(model, prompt, 12) for prompt in PROMPTS]
        assert outputs_of(run(make_engine(loaded), PROMPTS, 12)) == tokens


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    sizes = SIZES | {"intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = random_model(GptOssConfig(**sizes, head_dim=8, layer_types=["sliding_attention", "full_attention"]))
    experts = ("experts.gate_up_proj", "experts.down_proj")
    write_checkpoint(tmp_path / "model", model, mxfp4, {"quant_method": "mxfp4"}, names=experts)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored["model.layers.0.mlp.experts.down_proj_blocks"].shape == (4, 32, 1, 16)
    loaded = load(tmp_path / "model")
    assert loaded.weights == "MXFP4, dequantised to float32"
    weights, expected = converted(tmp_path / "model"), model.state_dict()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []
    assert outputs_of(run(make_engine(loaded), PROMPTS, 12)) == [generate(model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transformers_own_code_makes_the_same_of_them(dtype: torch.dtype) -> None:
    weight = torch.randn(2, 64, 24, generator=torch.Generator().manual_seed(1))
    experts = mxfp4(weight).tensors
    theirs = convert_moe_packed_tensors(experts["blocks"], experts["scales"], dtype=dtype)
    mxfp4_layout = read_quantisation({"quantization_config": {"quant_method": "mxfp4"}})
    assert mxfp4_layout is not None
    ours = dequantise(mxfp4_layout, {f"_{name}": tensor for name, tensor in experts.items()}, dtype)
    assert torch.equal(ours, theirs)
    stored = in_blocks(weight[0], (16, 12), E4M3, "_scale_inv").tensors
    blocks = read_quantisation({"quantization_config": FP8 | {"weight_block_size": [16, 12]}})
    assert blocks is not None
    (number, scales), read = stored.values(), Fp8Dequantize(None)
    ours = dequantise(blocks, {"": number, "_scale_inv": scales}, dtype)
    assert torch.equal(ours, read._dequantize_one(number, scales, dtype))


def test_bytes_with_zero_points() -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
    layout = read_quantisation({"quantization_config": compressed("int-quantized", **weights)})
    assert layout is not None
    tensors = {
        ".weight": torch.tensor([[-128, 127], [3, 4]], dtype=torch.int8),
        ".weight_scale": torch.tensor([[0.5], [0.25]]),
        ".weight_zero_point": torch.tensor([[-100], [7]], dtype=torch.int8),
    }
    assert dequantise(layout, tensors, torch.float32).tolist() == [[-14.0, 113.5], [-1.0, -0.75]]


def test_experts_of_several_dimensions_in_fp8(llama: PreTrainedModel, tmp_path: Path) -> None:
    stacked = torch.stack([torch.randn(24, 20, generator=torch.Generator().manual_seed(seed)) for seed in range(3)])
    parts = [in_blocks(one, (20, 12), E4M3, "scale") for one in stacked]
    folder = tmp_path / "model"
    write_checkpoint(folder, llama, lambda weight: in_blocks(weight, (20, 12), E4M3, "weight_scale_inv"), FP8)
    tensors = load_file(folder / "model.safetensors") | {
        "experts.up": torch.stack([part.tensors["weight"] for part in parts]),
        "experts.up_scale_inv": torch.stack([part.tensors["scale"] for part in parts]),
        "experts.up.input_scale": torch.ones(()),
    }
    save(folder, tensors)
    load(folder)
    found = converted(folder)
    assert torch.equal(found["experts.up"], torch.stack([part.weight for part in parts]))
    assert not {name for name in found if name.endswith("scale")}


def test_scales_that_are_exponents(llama: PreTrainedModel, tmp_path: Path) -> None:
    def quantise(weight: Tensor) -> Stored:
        exponents = torch.tensor([[120, 121, 119, 126]], dtype=torch.uint8)[:, : -(-weight.shape[1] // 12)]
        numbers = weight.to(E4M3)
        factors = torch.tensor([2.0 ** (exponent - 127) for exponent in exponents[0].tolist()])
        expected = numbers.float() * factors.repeat_interleave(12)[: weight.shape[1]]
        return Stored({"weight": numbers, "weight_scale_inv": exponents}, expected)

    folder = tmp_path / "model"
    write_checkpoint(folder, llama, quantise, FP8 | {"weight_block_size": [64, 12], "scale_fmt": "ue8m0"})
    load(folder)
    weights, expected = converted(folder), llama.state_dict()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


@pytest.mark.skipif(not has_int8(CPU), reason="int8 weights need AVX-512 VNNI")
def test_int8_takes_the_dequantised_weights(saved: Path, llama: PreTrainedModel, tmp_path: Path) -> None:
    int8 = Numerics(Weights.INT8)
    loaded = load(saved, numerics=int8)
    assert loaded.weights == "AWQ 4 bit, dequantised to float32; int8 weights"
    llama.save_pretrained(tmp_path / "plain")
    plain = load(tmp_path / "plain", numerics=int8)
    assert plain.weights == "int8 weights"
    assert outputs_of(run(make_engine(loaded), PROMPTS, 12)) == outputs_of(run(make_engine(plain), PROMPTS, 12))


# --- made once, whole ---


def test_converted_once_a_dtype_and_content(saved: Path) -> None:
    cache_dir = saved.parent / "cache"

    def folders() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in cache_dir.iterdir() if path.name != FOLDER_NAME}

    load(saved)
    first = folders()
    load(saved)
    assert folders() == first
    load(saved, torch.bfloat16)
    os.utime(saved / "model.safetensors", ns=(0, 0))
    load(saved)
    assert len(folders()) == 3
    assert first.items() <= folders().items()


def test_a_write_that_fails_leaves_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.quantised_checkpoints.save_file", fail)
    assert_refused(saved, "model' cannot be loaded: .*No space left on device", ModelNotFound)


def test_a_hub_id(saved: Path, llama: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    home = saved.parent / "hub" / "models--somebody--something"
    snapshot = home / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.parent.mkdir(parents=True)
    saved.rename(snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home.parent))
    cache_dir = saved.parent / "cache"
    loaded = load_model("somebody/something", dtype=torch.float32, device=CPU, cache_dir=cache_dir)
    assert loaded.folder == "somebody/something"
    weights, expected = converted(saved), llama.state_dict()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


# --- refused ---


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "by 'bitsandbytes'; supported are awq, comp"),
        ({"quant_method": "modelopt"}, "by 'modelopt'; supported are"),
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
