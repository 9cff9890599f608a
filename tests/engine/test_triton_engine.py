"""The engine on Triton's kernels: on a GPU or, in a process of its own, under Triton's interpreter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedModel

from engine import kv_cache
from engine.cuda_graphs import Capture, CudaCapture, DecodeGraphs
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.fused_layer import FusedLayer
from engine.kv_cache import KVCache
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import SamplingParams
from engine.sampler import sample
from engine.triton_layer import TritonLayer
from kernels import ops
from tests.engine.fakes import make_request
from tests.engine.tiny_configs import SERVED, SIZES, WINDOW
from tests.engine.tiny_models import generate, make_config, make_engine, outputs_of, random_model, run
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
PROMPTS = [[*range(10, 22), *tail] for tail in ([], [50, 51], list(range(60, 70)))] + [[5, 6, 7]]
NUM_TOKENS = 5
PARAMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 5, "min_p": 0.1},
]


@pytest.fixture(autouse=True)
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too, under the interpreter."""
    monkeypatch.setattr(ops, "uses_triton", lambda device: True)


def model_of(**config: Any) -> PreTrainedModel:
    return random_model(LlamaConfig(**(SIZES | config)))


def load(folder: Path, **config: Any) -> LoadedModel:
    model_of(**config).save_pretrained(folder)
    return load_model(str(folder), dtype=torch.float32, device=DEVICE, cache_dir=folder / "cache")


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model loaded once: under the interpreter its self-test takes longer than what most tests do with it."""
    return load_on_triton(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_on_triton(tmp_path_factory.mktemp("one"), num_hidden_layers=1)


def load_on_triton(folder: Path, **config: Any) -> LoadedModel:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops, "uses_triton", lambda device: True)
        return load(folder, **config)


def layer_types(loaded: LoadedModel) -> set[type]:
    return {type(layer) for layer in loaded.model.model.get_submodule("model.layers").children()}


@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=str)
def test_layers_in_triton_answer_as_transformers_do(two_layers: LoadedModel, kv_dtype: torch.dtype | None) -> None:
    assert layer_types(two_layers) == {TritonLayer}
    found = outputs_of(run(make_engine(two_layers, kv_dtype, token_budget=16, max_num_seqs=4), PROMPTS, NUM_TOKENS))
    expected = [generate(model_of(), prompt, NUM_TOKENS) for prompt in PROMPTS]
    if kv_dtype is None:
        assert found == expected
    else:  # rounded: the first token depends on one prompt's K and V only
        assert [output[0] for output in found] == [output[0] for output in expected]


def test_layers_of_other_parts_are_not_in_triton(tmp_path: Path) -> None:
    assert layer_types(load(tmp_path, hidden_act="gelu")) == {FusedLayer}


def test_the_sampler_searches_and_takes_what_it_would_have_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(len(PARAMS), 500, generator=torch.Generator().manual_seed(0)) * 3
    requests = [make_request(request_id=str(row), seed=row, **params) for row, params in enumerate(PARAMS)]
    searched = sample(logits.to(DEVICE), requests)
    monkeypatch.setattr(ops, "uses_triton", lambda device: False)
    assert searched == sample(logits.clone(), requests)


def test_drawn_outputs_do_not_depend_on_the_batch(two_layers: LoadedModel) -> None:
    params = SamplingParams(max_tokens=3, temperature=1.5, top_p=0.9, seed=7, ignore_eos=True)

    def outputs(prompts: list[list[int]]) -> list[list[int]]:
        engine = make_engine(two_layers)
        requests = [engine.add(str(index), prompt, params) for index, prompt in enumerate(prompts)]
        while engine.has_work:
            engine.step()
        return outputs_of(requests)

    assert outputs(PROMPTS[1:3])[1] == outputs(PROMPTS[2:3])[0]


def test_blocks_are_copied_several_at_once(one_layer: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too, in the order in which they lie on a GPU."""
    monkeypatch.setattr(kv_cache, "_zeros", lambda sizes, dtype, device: torch.zeros(sizes, dtype=dtype, device=device))
    cache = KVCache(one_layer.model.kv_shape(4), 8, DEVICE)
    keys, values = cache.layers[0]
    for content in (keys, values):
        content.copy_(torch.randn(content.shape))
    expected = [content[[0, 1, 2, 3, 0, 2, 1, 7]].clone() for content in (keys, values)]
    cache.copy_blocks([(0, 4), (2, 5), (1, 6)])
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


# --- CUDA graphs: recorded on a GPU; under the interpreter a graph is the forward itself ---


class CountingCapture:
    """Records forwards where there is a GPU, and counts."""

    def __init__(self) -> None:
        self._capture = CudaCapture() if DEVICE.type == "cuda" else None
        self.num_graphs = self.num_replays = 0

    def __call__(self, forward: Callable[[], None]) -> Callable[[], None]:
        self.num_graphs += 1
        replay = forward if self._capture is None else self._capture(forward)

        def counted() -> None:
            self.num_replays += 1
            replay()

        return counted


def engine_with(loaded: LoadedModel, capture: Capture, **changes: Any) -> tuple[Engine, ModelRunner]:
    """Return an engine whose cache has one block more than it knows of, poisoned, and its runner."""
    config = make_config(loaded, **changes)
    runner = ModelRunner(loaded.model, config.num_blocks + 1, config.block_size, cuda_graphs=False)
    runner.graphs = DecodeGraphs(loaded.model, runner.cache, config.num_blocks, capture)
    return Engine(config, runner, loaded.identity, Detokenizer(lambda token_ids: "")), runner


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_steps_by_graphs_answer_as_those_without(one_layer: LoadedModel, async_scheduling: bool) -> None:
    """Three requests are filled up to four, then two remain, and one."""
    lengths = (3, 6, 8)
    expected = [generate(model_of(num_hidden_layers=1), prompt, n) for prompt, n in zip(PROMPTS, lengths, strict=False)]
    capture = CountingCapture()
    engine, runner = engine_with(one_layer, capture, async_scheduling=async_scheduling)
    requests = [
        engine.add(str(n), prompt, SamplingParams(max_tokens=n, ignore_eos=True))
        for prompt, n in zip(PROMPTS, lengths, strict=False)
    ]
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    assert outputs_of(requests) == expected
    assert (capture.num_graphs, capture.num_replays) == (3, 7)  # each token but the first ones, in a step
    key_cache, _ = runner.cache.layers[0]
    held = {block for block in range(key_cache.shape[0]) if bool(key_cache[block].any())}
    assert max(held) == engine.config.num_blocks, "what fills a step up writes to the block that nobody owns"
    assert bool(key_cache[-1, 0].any())
    assert not bool(key_cache[-1, 1:].any())


def test_a_step_by_a_graph_may_choose_late(one_layer: LoadedModel) -> None:
    """Its logits lie where the next step's will, and are changed in place, with the next forward still to come."""
    wanted = ({"repetition_penalty": 2.0}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 2.0, "logprobs": 1})
    capture = CountingCapture()
    by_graphs, _ = engine_with(one_layer, capture, async_scheduling=True)
    found = []
    for engine in (make_engine(one_layer), by_graphs):
        for n, params in enumerate(wanted):
            ending = SamplingParams(max_tokens=4 + n, ignore_eos=True, **params)  # type: ignore[arg-type]
            found.append(engine.add(str(n), PROMPTS[n], ending))
        while engine.has_work:
            engine.step()
    expected, ahead = found[: len(wanted)], found[len(wanted) :]
    assert outputs_of(ahead) == outputs_of(expected)
    tops = [[[token for token, _ in one.top] for one in request.logprobs] for request in (ahead[2], expected[2])]
    assert tops[0] == tops[1]
    assert capture.num_replays == 5


def test_graphs_have_each_groups_blocks(tmp_path: Path) -> None:
    """A full layer and one with a window, which slides on beneath a recorded step."""
    config = SERVED["gpt-oss"]()
    random_model(config).save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype=torch.float32, device=DEVICE, cache_dir=tmp_path / "cache")
    assert loaded.model.windows == (WINDOW, None)
    prompts, capture = [list(range(3, 34)), list(range(40, 60))], CountingCapture()
    engine, _ = engine_with(loaded, capture)
    requests = run(engine, prompts, 7)
    assert outputs_of(requests) == [generate(random_model(config), prompt, 7) for prompt in prompts]
    assert [request.figures.computed_tokens for request in requests] == [37, 26]
    assert capture.num_replays == 6


def test_a_model_that_cannot_be_recorded_runs_without(one_layer: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    num_tries = 0

    def refuse(forward: Callable[[], None]) -> Callable[[], None]:
        nonlocal num_tries
        num_tries += 1
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    engine, _ = engine_with(one_layer, refuse)
    found = outputs_of(run(engine, PROMPTS[3:], 4))
    assert found == [generate(model_of(num_hidden_layers=1), PROMPTS[3], 4)]
    assert num_tries == 1
    assert "steps run without CUDA graphs: operation not permitted when stream is capturing" in caplog.messages
