"""Models of many architectures: served like transformers' generate, or refused with the reason."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine.attention_layers import UnsupportedModel
from engine.attention_patches import reference_attention
from engine.engine import Engine
from engine.kv_groups import KVGroup
from engine.model_loader import LoadedModel
from engine.self_test_record import FOLDER_NAME
from tests.engine.architecture_table import (
    AT_ONCE,
    EACH_WAY,
    REFUSED_TITLE,
    SERVED_TITLE,
    hold_names,
    hold_row,
    served_row,
)
from tests.engine.tiny_configs import ALSO_SERVED, FALCON, LONGROPE, MIXED, REFUSED, SERVED, SIZES, VOCAB_SIZE, WINDOW
from tests.engine.tiny_models import generate, load, make_config, make_engine, outputs_of, random_model, run

NUM_TOKENS = 12


def make_small_engine(loaded: LoadedModel, longest: int, token_budget: int) -> Engine:
    """Return an engine with blocks for the longest sequence, and not for all of them."""
    sizes: dict[str, Any] = {"max_num_seqs": 8, "token_budget": token_budget}
    return make_engine(loaded, num_blocks=max(30, make_config(loaded, **sizes).most_blocks_of(longest)), **sizes)


def make_prompts() -> list[list[int]]:
    """Return prompts of many lengths; half of them share a long beginning, which the CPU kernel groups."""
    generator = random.Random(0)
    shared = [generator.randrange(VOCAB_SIZE) for _ in range(70)]
    beginnings = [shared if index % 2 else [] for index in range(8)]
    return [
        beginning + [generator.randrange(VOCAB_SIZE) for _ in range(generator.randint(1, 30))]
        for beginning in beginnings
    ]


@pytest.fixture
def writes(request: pytest.FixtureRequest) -> bool:
    """Whether to write docs/architectures.md instead of holding it to what is found."""
    return bool(request.config.getoption("--write-docs"))


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model, prompts, and what transformers generates from them."""

    name: str
    loaded: LoadedModel
    prompts: Sequence[Sequence[int]]
    expected: Sequence[Sequence[int]]


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    config = SERVED[request.param]()
    oracle = random_model(config)
    prompts = make_prompts()
    expected = [generate(oracle, prompt, NUM_TOKENS) for prompt in prompts]
    assert len({tuple(output) for output in expected}) >= len(prompts) - 1, "outputs too alike to tell a mistake by"
    loaded = load(random_model(config), tmp_path_factory.mktemp(request.param))
    return Served(request.param, loaded, prompts, expected)


def test_alone(served: Served) -> None:
    engine = make_engine(served.loaded)
    for prompt, expected in zip(served.prompts, served.expected, strict=True):
        assert outputs_of(run(engine, [prompt], NUM_TOKENS)) == [expected]


def test_batched(served: Served) -> None:
    assert outputs_of(run(make_engine(served.loaded), served.prompts, NUM_TOKENS)) == served.expected


@pytest.mark.parametrize("token_budget", [8, 13])
def test_chunked(served: Served, token_budget: int) -> None:
    engine = make_engine(served.loaded, token_budget=token_budget, max_num_seqs=8)
    assert outputs_of(run(engine, served.prompts, NUM_TOKENS)) == served.expected


def test_with_a_warm_cache(served: Served) -> None:
    engine = make_engine(served.loaded)
    run(engine, served.prompts, NUM_TOKENS)
    warm = run(engine, served.prompts, NUM_TOKENS)
    assert outputs_of(warm) == served.expected
    for request in warm:
        assert request.figures.prefix_hit_tokens == (request.num_prompt_tokens - 1) // 4 * 4


def test_after_preemptions(served: Served) -> None:
    engine = make_small_engine(served.loaded, max(map(len, served.prompts)) + NUM_TOKENS, token_budget=32)
    requests = run(engine, served.prompts, NUM_TOKENS)
    assert engine.status().preemptions > 0
    assert outputs_of(requests) == served.expected


def test_row_of_the_page(served: Served, writes: bool) -> None:
    hold_row(SERVED_TITLE, served_row(served.name, served.loaded, EACH_WAY), write=writes)


@pytest.mark.parametrize("name", ALSO_SERVED)
def test_all_at_once(name: str, tmp_path: Path, writes: bool) -> None:
    """Batched and chunked with hits on each other's prefixes; then with a warm cache and too few blocks."""
    config = ALSO_SERVED[name]()
    prompts = make_prompts()[:5]
    oracle = random_model(config, seed=1)
    expected = [generate(oracle, prompt, 6) for prompt in prompts]
    assert len({tuple(output) for output in expected}) >= 4, "outputs too alike to tell a mistake by"
    loaded = load(random_model(config, seed=1), tmp_path)
    engine = make_small_engine(loaded, max(map(len, prompts)) + 6, token_budget=29)
    assert outputs_of(run(engine, prompts, 6)) == expected
    assert outputs_of(run(engine, prompts, 6)) == expected
    gives_back = None not in engine.config.windows  # blocks that slid out: there is room for all
    assert (engine.status().preemptions == 0) == gives_back
    hold_row(SERVED_TITLE, served_row(name, loaded, AT_ONCE), write=writes)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path, writes: bool) -> None:
    make_config, reason = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        load(random_model(make_config()), tmp_path)
    assert "\n" not in str(raised.value)
    hold_row(REFUSED_TITLE, f"| {name} | {reason} |", write=writes)


def test_page_names_no_others(writes: bool) -> None:
    hold_names(SERVED_TITLE, SERVED.keys() | ALSO_SERVED.keys(), write=writes)
    hold_names(REFUSED_TITLE, REFUSED, write=writes)


@pytest.mark.parametrize("name", ["falcon-alibi", "lfm2", "bert"])
def test_narrow_types_make_no_difference(name: str, tmp_path: Path) -> None:
    """What is refused, and what is served by a patch, is so in bfloat16 too."""
    refused = REFUSED.get(name)
    model = random_model(refused[0]() if refused else SERVED[name]()).to(torch.bfloat16)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    if refused is None:
        load(model, tmp_path)
        return
    with pytest.raises(UnsupportedModel, match=refused[1]):
        load(model, tmp_path)


def test_falcons_reference_is_not_transformers_eager_attention(tmp_path: Path) -> None:
    """That adds the ALiBi bias twice: a model held to it would be refused, or answer wrongly."""
    model = random_model(SERVED["falcon-alibi"]())
    ids = torch.arange(3, 60).unsqueeze(0)
    logits = {}
    for name in ("eager", "sdpa"):
        model.config._attn_implementation = name
        logits[name] = model(ids, use_cache=False).logits[0, -1]
    assert (logits["eager"] - logits["sdpa"]).abs().max() > 0.1 * logits["sdpa"].std()
    load(model, tmp_path)


def falcon_with_slopes(num_heads: int, num_layers: int = 2) -> transformers.FalconConfig:
    sizes = {"hidden_size": 8 * num_heads, "num_attention_heads": num_heads, "num_hidden_layers": num_layers}
    return transformers.FalconConfig(**(FALCON | sizes), alibi=True, bias=True, multi_query=False, parallel_attn=False)


@pytest.mark.parametrize(("num_heads", "num_layers", "seed"), [(32, 2, 1), (64, 6, 1)])
def test_falcon_is_held_to_biases_that_are_not_rounded(
    num_heads: int, num_layers: int, seed: int, tmp_path: Path
) -> None:
    """Slopes of more than eight heads are no powers of two: transformers rounds the biases of the first tokens already,
    by more than a float32 model may be off."""
    load(random_model(falcon_with_slopes(num_heads, num_layers), seed), tmp_path)


def test_falcon_beyond_what_transformers_rounds_to(tmp_path: Path) -> None:
    """Rounding is all that the two differ by, at any length: without it transformers generates what we do."""
    model = random_model(falcon_with_slopes(16))
    prompts = [[(5 + 7 * place * place) % VOCAB_SIZE for place in range(length)] for length in (40, 300, 700)]
    ids = torch.tensor(prompts[-1:])
    with torch.inference_mode():
        rounded = model(ids, use_cache=False).logits[0]
        with reference_attention(model):
            exact = model(ids, use_cache=False).logits[0]
            expected = [generate(model, prompt, NUM_TOKENS) for prompt in prompts]
    assert (rounded - exact).abs().max() > 0.1 * exact.std()
    assert (model(ids, use_cache=False).logits[0] - rounded).abs().max() < 1e-4 * exact.std()  # as it was before
    engine = make_engine(load(model, tmp_path), num_blocks=600)
    assert outputs_of(run(engine, prompts, NUM_TOKENS)) == expected


def test_falcons_queries_are_served_by_few_kv_heads(tmp_path: Path) -> None:
    """transformers repeats them for each query head before it caches them."""
    config = transformers.FalconConfig(**FALCON, alibi=False, num_kv_heads=1, new_decoder_architecture=True)
    (layer, _) = load(random_model(config), tmp_path).model.layers
    assert (layer.num_heads, layer.num_kv_heads) == (4, 1)


def test_window_that_only_a_mask_would_apply_is_refused(tmp_path: Path) -> None:
    """A short self-test would not notice."""
    config = SERVED["llama"]()
    config.sliding_window = 1000
    with pytest.raises(UnsupportedModel, match="its layer 0 is sliding_attention, but attends with a window of None"):
        load(random_model(config), tmp_path)


def test_memory_of_layers_that_differ(tmp_path: Path) -> None:
    """Gemma 4: wider heads in full layers, and the last two layers have no K and V of their own."""
    model = load(random_model(SERVED["gemma4"]()), tmp_path).model
    assert [(layer.head_dim, layer.source) for layer in model.layers] == [(8, 0), (16, 1), (8, 0), (16, 1)]
    assert model.kv_groups == (KVGroup(WINDOW, (0,)), KVGroup(None, (1,)))
    assert model.kv_shape(4).bytes_per_block == 2 * 2 * 16 * 4 * 4


def test_model_that_is_off_by_a_little_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.ops.paged_attention", lambda query, *_: query.clone())
    with pytest.raises(UnsupportedModel, match="differ from eager attention by"):
        load(random_model(SERVED["llama"]()), tmp_path)


def test_longrope_is_kept_within_its_original_context(tmp_path: Path) -> None:
    """Above it, one long sequence would change the frequencies of all that share its step."""
    config = transformers.Phi3Config(**(SIZES | LONGROPE))
    loaded = load(random_model(config), tmp_path)
    assert loaded.model.max_model_len == 32
    oracle = random_model(config)
    prompts = [prompt[:20] for prompt in make_prompts()]
    expected = [generate(oracle, prompt, NUM_TOKENS) for prompt in prompts]
    assert outputs_of(run(make_engine(loaded), prompts, NUM_TOKENS)) == expected


def test_longrope_beyond_its_original_context_has_one_set_of_frequencies(tmp_path: Path) -> None:
    """That for long sequences, which transformers takes from the first prompt that is long, for short ones too."""
    config = transformers.Phi3Config(**(SIZES | LONGROPE))
    model = random_model(config)
    loaded = load(model, tmp_path, max_model_len=100)
    assert loaded.model.max_model_len == config.max_position_embeddings
    prompts = [(prompt * 20)[:length] for prompt, length in zip(make_prompts(), (5, 20, 33, 60, 80), strict=False)]
    assert max(map(len, prompts)) > 2 * 32
    found = outputs_of(run(make_engine(loaded, max_model_len=100), prompts, NUM_TOKENS))
    scaling = LONGROPE["rope_scaling"]
    always = random_model(
        transformers.Phi3Config(
            **(SIZES | LONGROPE | {"rope_scaling": scaling | {"short_factor": scaling["long_factor"]}})
        )
    )
    assert found == [generate(always, prompt, NUM_TOKENS) for prompt in prompts]
    long = [index for index, prompt in enumerate(prompts) if len(prompt) > 32]
    assert [found[index] for index in long] == [generate(model, prompts[index], NUM_TOKENS) for index in long]
    assert generate(random_model(config), prompts[1], NUM_TOKENS) != found[1]  # by the frequencies for short ones


def test_longrope_of_one_type_of_layers(tmp_path: Path) -> None:
    """It keeps all layers within its original context, or is alone in being lengthened."""

    def model_of(short_factor: list[float]) -> transformers.PreTrainedModel:
        full = LONGROPE["rope_scaling"] | {"original_max_position_embeddings": 32, "short_factor": short_factor}
        rotations = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": full | {"rope_theta": 10000.0},
        }
        return random_model(transformers.Gemma3TextConfig(**MIXED, head_dim=8, rope_parameters=rotations))

    assert load(model_of([1.0] * 4), tmp_path).model.max_model_len == 32
    loaded = load(model_of([1.0] * 4), tmp_path, max_model_len=33)
    assert loaded.model.max_model_len > 100
    assert len(list((tmp_path / "cache" / FOLDER_NAME).iterdir())) == 2  # each has had a self-test of its own
    prompts = [prompt[:20] for prompt in make_prompts()]
    always = model_of(LONGROPE["rope_scaling"]["long_factor"])
    assert outputs_of(run(make_engine(loaded), prompts, NUM_TOKENS)) == [
        generate(always, prompt, NUM_TOKENS) for prompt in prompts
    ]


def test_bfloat16_model_is_served(tmp_path: Path) -> None:
    model = random_model(SERVED["llama"]()).to(torch.bfloat16)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    requests = run(make_engine(load(model, tmp_path)), make_prompts(), NUM_TOKENS)
    assert all(request.num_output_tokens == NUM_TOKENS for request in requests)
