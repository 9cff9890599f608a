"""The runner on a tiny real model: its memory, and numbers that are not finite."""

from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.kv_cache import QUANTISED, KVCache, KVShape
from engine.kv_layout import AttentionLayer, groups_of
from engine.model_loader import LoadedModel
from engine.paged_model import ModelInput
from engine.request import FinishReason, SamplingParams
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import load, make_engine, outputs_of, random_model, run

NAN_TOKEN = 95
NUM_TOKENS = 8
PARAMS = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPTS = [list(range(3, 3 + length)) for length in (1, 4, 9, 22)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model with one token whose embedding is not a number."""
    model = random_model(SERVED["llama"]())
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[NAN_TOKEN] = torch.nan
    return load(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> list[list[int]]:
    return outputs_of(run(make_engine(loaded), PROMPTS, NUM_TOKENS))


def step_all(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()


@pytest.mark.parametrize("token_budget", [8, 512])
def test_only_the_request_that_is_not_finite_fails(
    loaded: LoadedModel, expected: list[list[int]], token_budget: int
) -> None:
    engine = make_engine(loaded, token_budget=token_budget, max_num_seqs=8)
    bad = engine.add("bad", [*PROMPTS[-1], NAN_TOKEN, 5], PARAMS)
    good = [engine.add(str(index), prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]
    also_bad = engine.add("also bad", [NAN_TOKEN] * 20, PARAMS)
    step_all(engine)
    assert outputs_of(good) == expected
    for request in (bad, also_bad):
        assert request.finish_reason is FinishReason.ERROR
        assert request.error is not None
        assert request.error.code == "numerical_error"


def test_its_blocks_are_safe_for_whoever_gets_them_next(loaded: LoadedModel, expected: list[list[int]]) -> None:
    engine = make_engine(loaded, num_blocks=8, token_budget=64)
    engine.add("bad", [NAN_TOKEN] * 20, PARAMS)
    engine.add("as bad", [*[NAN_TOKEN] * 20, 1], PARAMS)  # shares blocks with the first
    step_all(engine)
    for prompt, output in zip(PROMPTS, expected, strict=True):
        assert outputs_of(run(engine, [prompt], NUM_TOKENS)) == [output]


def test_aborted_in_the_middle_of_its_prefill(loaded: LoadedModel, expected: list[list[int]]) -> None:
    engine = make_engine(loaded, num_blocks=8, token_budget=8, max_num_seqs=8)
    engine.add("bad", [NAN_TOKEN] * 20, PARAMS)
    engine.step()
    engine.abort("bad")
    for prompt, output in zip(PROMPTS, expected, strict=True):
        assert outputs_of(run(engine, [prompt], NUM_TOKENS)) == [output]


def test_seeded_sampling_is_the_same_alone_batched_and_preempted(loaded: LoadedModel) -> None:
    params = [
        SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.9, seed=seed, top_k=20 * (seed % 2))
        for seed in range(4)
    ]
    alone = []
    for sampling, prompt in zip(params, PROMPTS, strict=True):
        engine = make_engine(loaded)
        request = engine.add("r", prompt, sampling)
        step_all(engine)
        alone.append(request.output_token_ids)
    for num_blocks in (300, 10):
        engine = make_engine(loaded, num_blocks=num_blocks, max_num_seqs=4, token_budget=16)
        together = [
            engine.add(str(index), prompt, sampling)
            for index, (sampling, prompt) in enumerate(zip(params, PROMPTS, strict=True))
        ]
        step_all(engine)
        assert outputs_of(together) == alone
        assert (engine.status().preemptions > 0) == (num_blocks == 10)


def layers_of(count: int, *, num_kv_heads: int, head_dim: int) -> tuple[AttentionLayer, ...]:
    return tuple(AttentionLayer(num_kv_heads, num_kv_heads, head_dim, None, index) for index in range(count))


def test_cache_memory_is_what_the_shape_says() -> None:
    layers = layers_of(3, num_kv_heads=2, head_dim=8)
    shape = KVShape(layers, groups_of(layers, 128), block_size=4, dtype=torch.bfloat16)
    cache = KVCache(shape, 5, torch.device("cpu"))
    tensors = [tensor for layer in cache.layers for tensor in layer]
    assert all(tensor.shape == (5, 4, 2, 8) and tensor.dtype is torch.bfloat16 for tensor in tensors)
    assert sum(tensor.nbytes for tensor in tensors) == 5 * shape.bytes_per_block == 5 * 2 * 3 * 2 * 8 * 4 * 2
    assert not any(tensor.any() for tensor in tensors)


@pytest.mark.parametrize("dtype", QUANTISED.values(), ids=str)
def test_quantised_cache_memory_is_what_the_shape_says(dtype: torch.dtype) -> None:
    layers = layers_of(3, num_kv_heads=2, head_dim=8)
    shape = KVShape(layers, groups_of(layers, 128), block_size=4, dtype=dtype)
    cache = KVCache(shape, 5, torch.device("cpu"))
    numbers = [tensor for layer in cache.layers for tensor in layer]
    scales = [tensor for layer in cache.scales if layer is not None for tensor in (layer.key, layer.value)]
    assert all(tensor.shape == (5, 4, 2, 8) and tensor.dtype is dtype for tensor in numbers)
    assert all(tensor.shape == (5, 4, 2) for tensor in scales)
    assert sum(tensor.nbytes for tensor in (*numbers, *scales)) == 5 * shape.bytes_per_block
    assert shape.bytes_per_block == 2 * 3 * 2 * 4 * (8 + 2)
    assert not any(tensor.float().any() for tensor in (*numbers, *scales))


def test_scrub_cleans_its_blocks_only() -> None:
    layers = layers_of(2, num_kv_heads=1, head_dim=2)
    shape = KVShape(layers, groups_of(layers, 128), block_size=2, dtype=torch.float32)
    cache = KVCache(shape, 4, torch.device("cpu"))
    for layer in cache.layers:
        for tensor in layer:
            tensor.fill_(torch.nan)
    cache.scrub([])
    cache.scrub([1, 3])
    for layer in cache.layers:
        for tensor in layer:
            assert tensor[[0, 2]].isnan().all()
            assert not tensor[[1, 3]].any()


def test_dtype_of_the_cache_is_the_models(tmp_path: Path) -> None:
    model = random_model(SERVED["llama"]()).to(torch.bfloat16)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    assert load(model, tmp_path).model.kv_shape(16).dtype is torch.bfloat16


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_step_without_memory_is_made_smaller(
    loaded: LoadedModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    forward, sizes = loaded.model.forward, []

    def small_steps_only(model_input: ModelInput) -> torch.Tensor:
        sizes.append(model_input.input_ids.shape[1])
        if sizes[-1] > NUM_TOKENS:
            raise error
        return forward(model_input)

    monkeypatch.setattr(loaded.model, "forward", small_steps_only)
    engine = make_engine(loaded, block_size=8)
    requests = [engine.add(str(index), prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]
    step_all(engine)
    assert outputs_of(requests) == expected
    assert max(sizes) > NUM_TOKENS


def test_prompt_on_which_the_model_raises_ends_alone(
    loaded: LoadedModel, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = loaded.model.forward

    def fragile(model_input: ModelInput) -> torch.Tensor:
        if (model_input.input_ids == NAN_TOKEN).any():
            raise RuntimeError("shape mismatch")
        return forward(model_input)

    monkeypatch.setattr(loaded.model, "forward", fragile)
    engine = make_engine(loaded)
    requests = [engine.add(str(index), prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]
    bad = engine.add("bad", [4, NAN_TOKEN, 5], PARAMS)
    step_all(engine)
    assert bad.error is not None
    assert bad.error.code == "step_failed"
    assert outputs_of(requests) == expected
