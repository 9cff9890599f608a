"""Models of many architectures: served like transformers' generate, or refused with the reason."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from engine.model_loader import LoadedModel
from engine.paged_model import UnsupportedModel
from tests.engine.tiny_models import (
    LONGROPE,
    REFUSED,
    SERVED,
    SIZES,
    VOCAB_SIZE,
    generate,
    load,
    make_engine,
    outputs_of,
    random_model,
    run,
)

NUM_TOKENS = 12


def make_prompts() -> list[list[int]]:
    """Return prompts of many lengths; half of them share a long beginning, which the CPU kernel groups."""
    generator = random.Random(0)
    shared = [generator.randrange(VOCAB_SIZE) for _ in range(70)]
    beginnings = [shared if index % 2 else [] for index in range(8)]
    return [
        beginning + [generator.randrange(VOCAB_SIZE) for _ in range(generator.randint(1, 30))]
        for beginning in beginnings
    ]


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model, prompts, and what transformers generates from them."""

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
    return Served(load(random_model(config), tmp_path_factory.mktemp(request.param)), prompts, expected)


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
    engine = make_engine(served.loaded, num_blocks=30, max_num_seqs=8, token_budget=32)
    requests = run(engine, served.prompts, NUM_TOKENS)
    assert engine.status().preemptions > 0
    assert outputs_of(requests) == served.expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    make_config, reason = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=reason) as raised:
        load(random_model(make_config()).to(dtype), tmp_path)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    assert "\n" not in str(raised.value)


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


def test_bfloat16_model_is_served(tmp_path: Path) -> None:
    model = random_model(SERVED["llama"]()).to(torch.bfloat16)  # type: ignore[arg-type]  # its decorator hides nn.Module.to
    requests = run(make_engine(load(model, tmp_path)), make_prompts(), NUM_TOKENS)
    assert all(request.num_output_tokens == NUM_TOKENS for request in requests)
