"""Quantised checkpoints: each format's weights are what its numbers stand for, and are made once."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import GptOssConfig, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.checkpoint_files import CheckpointFiles
from engine.dequantising import dequantise
from engine.linears import Numerics, Weights, has_int8
from engine.model_loader import load_model
from engine.quantisation_config import read_quantisation
from engine.self_test_record import FOLDER_NAME
from tests.engine.quantised_cases import CASES, CPU, E4M3, FP8, Case, compressed, llama, load, saved
from tests.engine.quantised_models import Stored, in_blocks, mxfp4, save, write_checkpoint
from tests.engine.tiny_configs import SERVED, SIZES
from tests.engine.tiny_models import generate, make_engine, outputs_of, random_model, run

__all__ = ["llama", "saved"]

PROMPTS = [[5, 6, 7], list(range(10, 40)), [90]]


def converted(folder: Path) -> dict[str, Tensor]:
    """Return the weights of the only converted folder."""
    (made,) = [path for path in (folder.parent / "cache").iterdir() if path.name != FOLDER_NAME]
    with CheckpointFiles(str(made)) as files:
        return {name: files.read(name) for name in files.names}


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
    content = bytearray((saved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (saved / "model.safetensors").write_bytes(content)
    load(saved)
    assert len(folders()) == 3
    assert first.items() <= folders().items()


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
