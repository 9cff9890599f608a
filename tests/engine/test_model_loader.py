"""Loading: safetensors and GGUF are served, pickle and a model's own code are not, and errors are one line."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.fused_layer import FusedLayer
from engine.model_loader import LoadedModel, ModelNotFound, choose_device, choose_dtype, load_model
from engine.native_layer import NativeStack
from engine.self_test_record import FOLDER_NAME
from kernels.native.building import NativeBuild
from kernels.native.toolchain import find_compiler, is_supported
from tests.engine.tiny_configs import SERVED, SIZES
from tests.engine.tiny_gguf import TOKENS, write_gguf
from tests.engine.tiny_models import generate, make_engine, outputs_of, random_model, run

COMPILE_SECONDS = 300.0
PROMPTS = [[5, 6, 7], list(range(10, 40)), [90]]


def load(source: Path, cache_dir: Path, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(str(source), dtype=dtype, device=torch.device("cpu"), cache_dir=cache_dir)


@pytest.fixture
def llama() -> PreTrainedModel:
    return random_model(SERVED["llama"]())


@pytest.fixture
def saved(llama: PreTrainedModel, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    llama.save_pretrained(folder)
    return folder


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def assert_refused(source: Path, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason) as raised:
        load(source, source.parent / "cache")
    assert "\n" not in str(raised.value)


def test_identity_of_a_folder(saved: Path, tmp_path: Path) -> None:
    loaded = load(saved, tmp_path)
    assert loaded.identity.name == str(saved)
    assert loaded.identity.vocab_size == 96
    assert loaded.identity.stop_token_ids == {2}
    assert loaded.folder == str(saved)
    assert loaded.model.max_model_len == 128
    assert [(layer.num_heads, layer.num_kv_heads) for layer in loaded.model.layers] == [(4, 2), (4, 2)]


@pytest.mark.parametrize(
    ("eos_token_id", "expected"),
    [(None, frozenset()), (7, frozenset({7})), ([7, 8], frozenset({7, 8})), ([7, 96, -1], frozenset({7}))],
)
def test_stop_tokens(
    saved: Path, tmp_path: Path, eos_token_id: int | list[int] | None, expected: frozenset[int]
) -> None:
    change_config(saved, eos_token_id=eos_token_id)
    (saved / "generation_config.json").unlink()
    assert load(saved, tmp_path).identity.stop_token_ids == expected


def test_pickled_weights_are_not_read(saved: Path, llama: PreTrainedModel) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(llama.state_dict(), saved / "pytorch_model.bin")
    assert_refused(saved, ModelNotFound, "no file named model.safetensors")


@pytest.mark.parametrize("model_type", ["llama", "never-heard-of"])
def test_models_own_code_is_not_run(saved: Path, model_type: str) -> None:
    marker = saved / "it-ran"
    (saved / "own.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n")
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    change_config(saved, model_type=model_type, auto_map=auto_map)
    with pytest.raises((UnsupportedModel, ModelNotFound), match=r"auto_map|custom code"):
        load(saved, saved)
    assert not marker.exists()


def test_absent_folder(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent", ModelNotFound, "absent' does not exist")


def test_folder_without_a_model(tmp_path: Path) -> None:
    assert_refused(tmp_path, ModelNotFound, "Unrecognized model")


def test_broken_config(saved: Path) -> None:
    (saved / "config.json").write_text("{")
    assert_refused(saved, ModelNotFound, "not a valid JSON file")


def test_config_that_contradicts_itself(saved: Path) -> None:
    change_config(saved, num_attention_heads=5)
    assert_refused(saved, ModelNotFound, "cannot be loaded")


def test_truncated_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert_refused(saved, ModelNotFound, "cannot be loaded")


def test_weights_of_another_shape(saved: Path) -> None:
    change_config(saved, hidden_size=64)
    assert_refused(saved, ModelNotFound, "cannot be loaded")


def test_missing_weights_are_not_made_up(saved: Path) -> None:
    change_config(saved, num_hidden_layers=3)
    assert_refused(saved, ModelNotFound, r"it lacks model\.layers\.2\.input_layernorm\.weight, ")


# --- GGUF ---


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


def test_gguf_equals_its_direct_load(gguf: Path, tmp_path: Path) -> None:
    loaded = load(gguf, tmp_path / "cache")
    assert loaded.identity.name == str(gguf)
    assert loaded.identity.stop_token_ids == {0}
    direct = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    expected = [generate(direct, prompt, 12) for prompt in PROMPTS]
    assert len(set(map(tuple, expected))) == len(PROMPTS)
    assert outputs_of(run(make_engine(loaded), PROMPTS, 12)) == expected
    converted = AutoModelForCausalLM.from_pretrained(loaded.folder, dtype=torch.float32).state_dict()
    assert converted.keys() == direct.state_dict().keys()
    assert all(torch.equal(converted[name], weight) for name, weight in direct.state_dict().items())


def test_gguf_tokenizer_comes_along(gguf: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(load(gguf, tmp_path / "cache").folder)
    assert tokenizer("cab").input_ids == [TOKENS.index("c"), TOKENS.index("ab")]


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_gguf_is_converted_once_a_dtype_and_content(gguf: Path, tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    first = load(gguf, cache_dir).folder
    files = files_of(cache_dir)
    assert load(gguf, cache_dir).folder == first
    assert files_of(cache_dir) == files
    narrow = load(gguf, cache_dir, torch.bfloat16)
    assert narrow.model.dtype is torch.bfloat16
    write_gguf(gguf, seed=1)
    other = load(gguf, cache_dir).folder
    assert len({first, narrow.folder, other}) == 3
    made = [path for path in cache_dir.iterdir() if path.suffix != ".so" and path.name != FOLDER_NAME]  # C kernels
    assert len(made) == 3  # and nothing half-done beside them


def test_gguf_that_lacks_a_weight(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, without="blk.1.ffn_up")
    assert_refused(path, ModelNotFound, r"it lacks model\.layers\.1\.mlp\.up_proj\.weight")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"not GGUF at all", b"GGUF\x03\x00\x00\x00"])
def test_file_that_is_not_gguf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    assert_refused(path, ModelNotFound, "broken.gguf' cannot be loaded")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_gguf_cut_short(gguf: Path, share: float) -> None:
    content = gguf.read_bytes()
    gguf.write_bytes(content[: int(share * len(content))])
    assert_refused(gguf, ModelNotFound, "tiny.gguf' cannot be loaded: .")
    assert list((gguf.parent / "cache").iterdir()) == []


def test_absent_gguf(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.gguf", ModelNotFound, "absent.gguf' does not exist")


# --- choices ---


def test_device_and_dtype_by_name() -> None:
    cpu = torch.device("cpu")
    assert choose_device("cpu") == cpu
    assert choose_device("auto").type in {"cpu", "cuda"}
    assert choose_dtype("float16", cpu) is torch.float16
    assert choose_dtype("auto", cpu) in {torch.float32, torch.bfloat16}
    assert choose_dtype("auto", torch.device("cuda")) is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "is_fused"),
    [
        ("llama", True),
        ("qwen2", True),  # its queries, keys and values have biases
        ("mistral", True),
        ("qwen3", False),  # norms of queries and keys
        ("ministral3-scaled", False),  # queries are scaled by their position, once that is behind the original context
        ("granite", False),  # scaled residuals: the parts are the same, the answer is not
        ("olmo2", False),  # norms behind, not before
        ("gemma", True),  # a norm and an activation of its own, both kept
    ],
)
def test_decoder_layers_are_fused_where_that_changes_nothing(
    name: str, is_fused: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    random_model(SERVED[name]()).to(dtype).save_pretrained(tmp_path)  # type: ignore[arg-type]  # nn.Module.to, hidden
    layers = load(tmp_path, tmp_path / "cache", dtype).model.model.get_submodule("model.layers")
    assert isinstance(layers, torch.nn.ModuleList)
    assert [isinstance(layer, FusedLayer) for layer in layers] == [is_fused] * len(layers)


def test_decoder_layers_get_c_kernels_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their weights huge pages."""
    if not is_supported() or find_compiler() is None:
        pytest.skip("this machine has no AVX-512 bfloat16, or no C compiler")
    assert NativeBuild(tmp_path / "cache").wait(COMPILE_SECONDS), "loading does not wait so long"
    fitting = SIZES | {
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    configs = {
        "fits": LlamaConfig(**fitting),
        "width": LlamaConfig(**(fitting | {"intermediate_size": 40})),
        "gelu": LlamaConfig(**fitting, hidden_act="gelu"),
    }
    found, weights = {}, []
    monkeypatch.setattr("engine.model_loader.use_huge_pages", lambda tensors: weights.append(len(list(tensors))))
    for name, config in configs.items():
        model = random_model(config).to(torch.bfloat16)  # type: ignore[arg-type]  # nn.Module.to, hidden
        model.save_pretrained(tmp_path / name)
        layers = load(tmp_path / name, tmp_path / "cache", torch.bfloat16).model.model.get_submodule("model.layers")
        found[name] = {type(layer) for layer in layers.children()}
    assert found == {"fits": {NativeStack}, "width": {FusedLayer}, "gelu": {FusedLayer}}
    assert weights == [4 * fitting["num_hidden_layers"] + 1] * 3  # and the head's
