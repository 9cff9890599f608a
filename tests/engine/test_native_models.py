"""Models in bfloat16 whose layers, products and caches are the C kernels': against transformers' own in float32."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from engine.kv_cache import QUANTISED, KVCache
from engine.linears import NativeLinear, Numerics, Weights
from engine.model_loader import LoadedModel, load_model
from engine.native_layer import NativeLayer
from engine.probing import probe_request
from engine.request import Request, SamplingParams
from engine.step_plan import ScheduledRequest, SchedulerOutput
from kernels.native.building import NativeBuild
from kernels.native.toolchain import find_compiler, is_supported
from tests.engine.tiny_configs import GPT_SIZES, LOCAL_MOE, OLD_SIZES, SIZES
from tests.engine.tiny_models import make_engine, random_model

pytestmark = pytest.mark.skipif(
    not is_supported() or find_compiler() is None, reason="this machine cannot compile or run the C kernels"
)

CONTEXT = 1024
WIDE = SIZES | {"hidden_size": 128, "intermediate_size": 96, "max_position_embeddings": CONTEXT}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "qwen2": lambda: transformers.Qwen2Config(**WIDE),  # biases
    "qwen3": lambda: transformers.Qwen3Config(**WIDE, head_dim=64),  # norms of heads: a layer of its own
    "mistral-window": lambda: transformers.MistralConfig(**WIDE, sliding_window=70),
    "gemma2": lambda: transformers.Gemma2Config(**WIDE, head_dim=32, sliding_window=70, attn_logit_softcapping=3.0),
    "gpt-oss": lambda: transformers.GptOssConfig(**(LOCAL_MOE | WIDE), head_dim=32, sliding_window=70),
    "bloom": lambda: transformers.BloomConfig(**(OLD_SIZES | {"hidden_size": 128, "seq_length": CONTEXT}), n_head=4),
    "gpt2": lambda: transformers.GPT2Config(**(GPT_SIZES | {"n_embd": 128, "n_positions": CONTEXT})),
}
WHOLE_LAYERS = {"llama", "qwen2", "mistral-window"}
SHARED = [3 + (7 * index) % 90 for index in range(330)]
PROMPTS: Sequence[list[int]] = (
    [*SHARED, 5, 6],
    [*SHARED, *range(10, 40)],
    [9, 8, 7],
    list(range(3, 90)),
    [*SHARED[:100], 5],
)
COMPILE_SECONDS = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("native")
    assert NativeBuild(base / "cache").wait(COMPILE_SECONDS), "loading does not wait so long"
    return base


def load(folder: Path, name: str, numerics: Numerics | None = None, *, native: bool = True) -> LoadedModel:
    saved = folder / name
    if not saved.exists():
        model = random_model(CONFIGS[name]()).to(torch.bfloat16)  # type: ignore[arg-type]  # nn.Module.to, hidden
        model.save_pretrained(saved)
    return load_model(
        str(saved),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        cache_dir=folder / "cache",
        native_kernels=native,
        numerics=numerics or Numerics(),
    )


def logits_of(loaded: LoadedModel, kv_dtype: torch.dtype | None = None) -> Tensor:
    """Return the last token's logits of each prompt, [num_prompts, vocab_size], from three steps: the first two prompts
    in part; all others and the rest but one token; a token of each. The second shares the first one's blocks."""
    model = loaded.model
    num_groups = len(model.kv_groups)
    cache = KVCache(model.kv_shape(16, kv_dtype), 80 * num_groups, model.device)
    tables = [list(range(30, 8, -1)), [*range(30, 10, -1), 41, 42, 43], [44], [*range(50, 56)], [*range(60, 70)]]
    requests = [probe_request(prompt, table, num_groups) for prompt, table in zip(PROMPTS, tables, strict=True)]
    logits = torch.empty(0)
    done = [0, 320, 0, 0, 0]  # the second begins behind what the first stores
    for stops in ((325, 320, 0, 0, 0), tuple(len(p) - 1 for p in PROMPTS), tuple(map(len, PROMPTS))):
        shares = [
            ScheduledRequest(request, start, stop - start)
            for request, start, stop in zip(requests, done, stops, strict=True)
            if stop > start
        ]
        plan = SchedulerOutput(tuple(shares), sum(share.num_scheduled_tokens for share in shares), ())
        with torch.inference_mode():
            logits = model.forward(model.build_input(plan, cache))
        done = list(stops)
    return logits


@functools.cache
def _expected(saved: Path, dtype: torch.dtype) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(saved, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        return torch.stack([model(torch.tensor([prompt])).logits[0, -1].float() for prompt in PROMPTS])


def error_of(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).square().mean().sqrt() / exact.std())


@pytest.mark.parametrize("name", CONFIGS)
def test_as_exact_as_transformers_in_bfloat16(name: str, folder: Path) -> None:
    loaded = load(folder, name)
    layers = [module for module in loaded.model.model.modules() if isinstance(module, NativeLayer)]
    assert len(layers) == (2 if name in WHOLE_LAYERS else 0)
    assert isinstance(loaded.model.model.get_output_embeddings(), NativeLinear)
    assert loaded.model.kv_shape(16).is_tiled
    exact = _expected(folder / name, torch.float32)
    rounded = error_of(_expected(folder / name, torch.bfloat16), exact)
    assert error_of(logits_of(loaded), exact) < max(1.5 * rounded, 0.01)


@pytest.mark.parametrize("kv_name", QUANTISED)
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-window", "gemma2"])
def test_quantised_caches_equal_those_of_torch(name: str, kv_name: str, folder: Path) -> None:
    by_torch = logits_of(load(folder, name, native=False), QUANTISED[kv_name])
    exact = _expected(folder / name, torch.float32)
    loaded = load(folder, name)
    assert loaded.model.kv_shape(16, QUANTISED[kv_name]).is_tiled
    assert error_of(logits_of(loaded, QUANTISED[kv_name]), exact) < max(1.5 * error_of(by_torch, exact), 0.02)


def test_weights_of_int8(folder: Path) -> None:
    loaded = load(folder, "llama", Numerics(Weights.INT8))
    assert any(isinstance(module, NativeLayer) for module in loaded.model.model.modules())
    exact = _expected(folder / "llama", torch.float32)
    by_torch = logits_of(load(folder, "llama", Numerics(Weights.INT8), native=False))
    assert error_of(logits_of(loaded), exact) < max(1.5 * error_of(by_torch, exact), 0.02)


def test_blocks_that_are_no_tiles(folder: Path) -> None:
    """A whole layer over such a cache is called part by part."""
    loaded = load(folder, "llama")
    assert not loaded.model.kv_shape(8).is_tiled
    outputs = []
    for block_size in (8, 16):
        engine = make_engine(loaded, block_size=block_size, num_blocks=200)
        params = SamplingParams(max_tokens=1, logprobs=5, ignore_eos=True)
        requests = [engine.add(str(index), prompt, params) for index, prompt in enumerate(PROMPTS)]
        while engine.has_work:
            engine.step()
        outputs.append(torch.tensor([request.logprobs[0].logprob for request in requests]))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0.3)


@pytest.mark.parametrize("weights", Weights)
@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma2"])
def test_batch_invariance(name: str, weights: Weights, folder: Path) -> None:
    """To the bit, alone and in company, in any chunks, with and without prefix hits, after preemptions; the shared
    prefix is longer than a split, so that the requests in company read it together."""
    loaded = load(folder, name, Numerics(weights, batch_invariant=True))
    assert loaded.model.native is not None

    def run(chosen: Sequence[int], num_blocks: int = 120, **changes: Any) -> tuple[dict[int, object], int]:
        engine = make_engine(loaded, block_size=16, num_blocks=num_blocks, **changes)
        requests: dict[int, Request] = {}
        for index in chosen:
            params = SamplingParams(max_tokens=20, ignore_eos=True, temperature=index % 2 * 0.9, seed=index, logprobs=5)
            requests[index] = engine.add(str(index), PROMPTS[index], params)
        while engine.has_work:
            engine.step()
        found: dict[int, object] = {index: (one.output_token_ids, one.logprobs) for index, one in requests.items()}
        return found, engine.status().preemptions

    everybody = range(len(PROMPTS))
    expected: dict[int, object] = {}
    for index in everybody:
        expected |= run([index], enable_prefix_caching=False)[0]
    assert run(everybody)[0] == expected
    assert run(everybody[::-1], token_budget=37, max_num_seqs=5)[0] == expected
    found, preemptions = run(everybody, num_blocks=26 if len(loaded.model.windows) == 1 else 51, token_budget=300)
    assert found == expected
    assert preemptions > 0 or name == "mistral-window"  # what slid out is given back
