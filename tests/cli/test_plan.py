"""pagemill plan: of sizes, of model folders, of files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.kv_cache import QUANTISED, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from tests.cli.conftest import Run
from tests.cli.model_folders import AWQ, CONFIG, write_folder

SIZES_70B = (
    *("--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128"),
    *("--hidden-size", "8192", "--parameters", "70e9", "--vocab-size", "128256"),
)


def test_plan_says_that_70b_at_4_bit_does_not_fit_in_24_gb(run: Run) -> None:
    result = run("plan", *SIZES_70B, "--weight-bits", "4", "--memory", "24GB")
    assert result.exit_code == 1
    assert "does not fit: the weights alone take 35.0 GB (32.6 GiB) at 4 bits" in result.stderr
    assert "the memory has 24.0 GB (22.4 GiB)" in result.stderr


def test_plan_of_explicit_sizes(run: Run) -> None:
    result = run("plan", *SIZES_70B, "--weight-bits", "4", "--memory", "80GiB", "--context", "8192", "--json")
    assert result.exit_code == 0
    plan = json.loads(result.stdout)["plan"]
    assert plan["kv_bytes_per_token"] == 327_680
    assert plan["kv_bytes_per_token_without_gqa"] == 2_621_440
    assert plan["block_bytes"] == 16 * 327_680
    # 85,899,345,920 - 35,000,000,000 - (2048 * 8192 * 32 + 128 * 128256 * 4) bytes are left.
    assert plan["kv_cache_bytes"] == 50_296_807_936
    assert plan["num_blocks"] == 9593
    assert [fit["paged"] for fit in plan["fits"]] == [18, 74]
    assert [fit["reserved"] for fit in plan["fits"]] == [18, 18]


def test_plan_with_a_quantised_cache(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("plan", *SIZES_70B, "--weight-bits", "4", "--memory", "80GiB", "--json")
    plan = json.loads(run(*arguments, "--kv-dtype", "fp8").stdout)["plan"]
    assert plan["kv_bytes_per_token"] == 2 * 80 * 8 * (128 + 2)
    monkeypatch.setenv("PAGEMILL_KV_DTYPE", "int8")
    assert json.loads(run(*arguments).stdout)["plan"] == plan
    assert json.loads(run(*arguments, "--kv-dtype", "float16").stdout)["plan"]["kv_bytes_per_token"] == 327_680


@pytest.mark.parametrize("kv_dtype", QUANTISED)
def test_plan_counts_a_block_as_the_engine_does(run: Run, kv_dtype: str) -> None:
    arguments = ("plan", *SIZES_70B, "--memory", "200GiB", "--kv-dtype", kv_dtype, "--json")
    layers = tuple(AttentionLayer(64, 8, 128, None, source=index) for index in range(80))
    shape = KVShape(layers, groups_of(layers, 128), block_size=16, dtype=QUANTISED[kv_dtype])
    assert json.loads(run(*arguments).stdout)["plan"]["block_bytes"] == shape.bytes_per_block


def test_plan_says_that_a_worker_does_not_hold_4_bits(run: Run) -> None:
    note = "a worker does not hold weights in 4 bits: it dequantises them"
    assert note in run("plan", *SIZES_70B, "--weight-bits", "4", "--memory", "80GiB").stderr
    assert note not in run("plan", *SIZES_70B, "--weight-bits", "16", "--memory", "200GiB").stderr


def test_plan_with_int8_weights(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("plan", *SIZES_70B, "--memory", "80GiB", "--json")
    result = run(*arguments, "--weights", "int8")
    plan = json.loads(result.stdout)["plan"]
    embedding = 128_256 * 8192
    assert plan["weights_bytes"] == 70 * 10**9 + embedding + (70 * 10**9 - embedding) // 8192 * 12
    monkeypatch.setenv("PAGEMILL_WEIGHTS", "int8")
    assert json.loads(run(*arguments).stdout)["plan"] == plan
    assert run(*arguments, "--weights", "dtype").exit_code == 1
    monkeypatch.setenv("PAGEMILL_DTYPE", "float32")
    assert json.loads(run(*arguments).stdout)["deployment"]["weight_bits"] == 32
    refused = run(*arguments[:-2], "24GiB").stderr
    assert "at 8 bits in linear layers, else at 32 bits a parameter" in refused


def test_plan_when_no_sequence_fits(run: Run) -> None:
    result = run("plan", *SIZES_70B, "--weight-bits", "4", "--memory", "34GiB", "--context", "131072")
    assert result.exit_code == 1
    assert "no memory is left for one sequence of 131,072 tokens" in result.stderr


def plan_json(run: Run, *arguments: str) -> dict[str, Any]:
    result = run("plan", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_plan_of_a_folder_counts_its_safetensors(run: Run, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", CONFIG, {"a": [10, 20], "b": [5]})
    plan = plan_json(run, "model", "--memory", "1GiB")
    assert plan["shape"]["num_parameters"] == 205
    assert plan["deployment"]["context"] == 512
    assert plan["plan"]["kv_bytes_per_token"] == 2 * 3 * 2 * 16 * 2


def test_plan_of_a_config_alone_computes_the_parameters(run: Run, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", CONFIG)
    # Three layers of q and o (64 * 64 each), k and v (64 * 32 each), gate, up, down (64 * 128 each), two norms (64);
    # tied embeddings; the last norm.
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    plan = plan_json(run, "model", "--memory", "1GiB")
    assert plan["shape"]["num_parameters"] == 3 * layer + 1000 * 64 + 64
    assert plan_json(run, "model", "--memory", "1GiB", "--parameters", "1e6")["shape"]["num_parameters"] == 10**6


def test_plan_of_a_quantised_folder_counts_it_dequantised(run: Run, tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": [1000, 64],
        "model.layers.0.mlp.up_proj.qweight": [64, 16],  # 128 outputs of 64 columns
        "model.layers.0.mlp.up_proj.qzeros": [4, 16],
        "model.layers.0.mlp.up_proj.scales": [4, 128],
        "model.norm.weight": [64],
    }
    write_folder(tmp_path / "model", {**CONFIG, "quantization_config": AWQ}, shapes)
    plan = plan_json(run, "model", "--memory", "1GiB", "--weights", "int8")
    assert plan["shape"]["num_parameters"] == 64_000 + 128 * 64 + 64
    assert plan["shape"]["split"] == {"linear": 64_000 + 128 * 64, "other": 64_000 + 64}  # the LM head is the embedding
    assert plan["stored"] == "AWQ 4 bit"
    assert "AWQ 4 bit, dequantised when it is loaded" in run("plan", "model", "--memory", "1GiB").stdout
    write_folder(tmp_path / "other", {**CONFIG, "quantization_config": {**AWQ, "bits": 3}}, shapes)
    result = run("plan", "other", "--memory", "1GiB")
    assert (result.exit_code, result.stderr.count("\n")) == (78, 1)
    assert "its weights are quantised by awq with bits 3; supported is 4" in result.stderr


@pytest.mark.parametrize(
    ("quantization", "shapes", "size"),
    [
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, {"a.qweight": [16, 32], "a.qzeros": [1, 8]}, 2048),
        ({"quant_method": "mxfp4"}, {"a_blocks": [4, 32, 2, 16]}, 8192),
        (
            {"quant_method": "fp8", "weight_block_size": [8, 8]},
            {"a.weight": [64, 32], "a.weight_scale_inv": [8, 4]},
            2048,
        ),
    ],
)
def test_plan_counts_each_layout(
    run: Run, tmp_path: Path, quantization: dict[str, object], shapes: dict[str, list[int]], size: int
) -> None:
    scales = {"a.qzeros": "a.scales", "a_blocks": "a_scales"}
    parts = {scales[name]: [9] for name in shapes if name in scales}
    write_folder(tmp_path / "model", {**CONFIG, "quantization_config": quantization}, {**shapes, **parts, "b": [5]})
    assert plan_json(run, "model", "--memory", "1GiB")["shape"]["num_parameters"] == size + 5


def test_plan_of_layers_with_a_window(run: Run, tmp_path: Path) -> None:
    write_folder(
        tmp_path / "model",
        {
            **CONFIG,
            "num_hidden_layers": 2,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    )
    plan = plan_json(run, "model", "--memory", "1GiB", "--context", "4096")
    assert [layer["window"] for layer in plan["shape"]["layers"]] == [64, None]
    assert plan["plan"]["num_groups"] == 2
    assert plan["plan"]["fits"][0]["kv_bytes"] == (256 + 5) * plan["plan"]["block_bytes"]
    shown = run("plan", "model", "--memory", "1GiB", "--context", "4096").stdout
    assert "1, of 64 tokens; 2 groups of layers have blocks of their own" in shown
    other = plan_json(run, "model", "--memory", "1GiB", "--layers", "3")
    assert [layer["window"] for layer in other["shape"]["layers"]] == [None] * 3
    other = plan_json(run, "model", "--memory", "1GiB", "--head-dim", "8")
    assert [(layer["window"], layer["head_dim"]) for layer in other["shape"]["layers"]] == [(64, 8), (None, 8)]


def test_plan_with_a_draft_model(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "model", CONFIG)
    write_folder(tmp_path / "draft", {**CONFIG, "num_hidden_layers": 1})
    plan = plan_json(run, "model", "--memory", "1GiB", "--draft-model", "draft")
    assert plan["plan"]["draft_kv_bytes_per_token"] == 2 * 1 * 2 * 16 * 2
    assert plan["plan"]["draft_weights_bytes"] == 2 * plan["draft_shape"]["num_parameters"]
    monkeypatch.setenv("PAGEMILL_SPECULATION", "draft")
    monkeypatch.setenv("PAGEMILL_DRAFT_MODEL", "draft")
    assert plan_json(run, "model", "--memory", "1GiB") == plan
    assert "of those, the draft model's" in run("plan", "model", "--memory", "1GiB").stdout


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**CONFIG, "num_hidden_layers": None}, "num_hidden_layers is None"),
        ({**CONFIG, "num_key_value_heads": 3}, "num_heads is 4; it must be a multiple of num_kv_heads (3)"),
        ({**CONFIG, "num_local_experts": 8}, "has experts"),
    ],
)
def test_plan_refuses_a_config_that_lacks_something(
    run: Run, tmp_path: Path, config: dict[str, object], words: str
) -> None:
    write_folder(tmp_path / "model", config)
    result = run("plan", "model", "--memory", "1GiB")
    assert result.exit_code == 78
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.gguf", b"not a model", "cannot be read as GGUF"),
        ("model.bin", b"", "is a file, but not a .gguf one"),
    ],
)
def test_plan_refuses_other_files(run: Run, tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("plan", name, "--memory", "1GiB")
    assert result.exit_code == 78
    assert words in result.stderr


def test_plan_refuses_a_corrupt_safetensors_file(run: Run, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", CONFIG)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\xff" * 16)
    result = run("plan", "model", "--memory", "1GiB")
    assert (result.exit_code, result.stderr.count("\n")) == (78, 1)
    assert "is not a safetensors file" in result.stderr


def test_plan_needs_a_model_or_sizes(run: Run) -> None:
    result = run("plan", "--memory", "1GiB", "--layers", "2")
    assert result.exit_code == 2
    assert "--kv-heads, --head-dim, --hidden-size, --parameters" in result.stderr


def test_hub_that_cannot_be_reached_is_unavailable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = run("plan", "no-such-owner/no-such-model", "--memory", "1GiB")
    assert result.exit_code == 69
    assert "cannot read no-such-owner/no-such-model from the hub" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.model
def test_plan_of_a_gguf_file(run: Run, smollm2_gguf: Path) -> None:
    plan = plan_json(run, str(smollm2_gguf), "--memory", "2GiB", "--kv-dtype", "float32")
    assert plan["shape"]["num_parameters"] == 134_515_008
    assert plan["shape"]["split"] == {"linear": 106_168_320 + 28_311_552, "other": 28_311_552 + 61 * 576}
    assert plan["stored"] == "GGUF Q4_1"
    assert plan["plan"]["kv_bytes_per_token"] == 46_080
    assert plan["deployment"]["context"] == 8192
