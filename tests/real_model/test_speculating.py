"""SmolLM2-135M in float32: greedy outputs with drafts are those without, token for token, whoever drafts."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel, load_model
from engine.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculator import Drafter
from scripts.benchmarks.draft_models import drafter_of, first_layers
from scripts.benchmarks.workload import encoder
from tests.engine.fake_speculation import EagerSpeculation

pytestmark = pytest.mark.model

NUM_TOKENS = 24
DRAFT_TOKENS = 4
CONFIG = EngineConfig(num_blocks=200, max_model_len=1024, max_num_seqs=8, token_budget=256)
QUESTIONS = (
    "What is the capital of France?",
    "Repeat these words three times: red green blue, red green blue, red green blue.",
    "Give me the Fibonacci numbers below 100, separated by commas.",
    "Name a fruit that is yellow. Answer with one word.",
)


@pytest.fixture(scope="module")
def loaded(smollm2_gguf: Path) -> LoadedModel:
    cache_dir = smollm2_gguf.parent / "converted"
    return load_model(str(smollm2_gguf), dtype=torch.float32, device=torch.device("cpu"), cache_dir=cache_dir)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    encode = encoder(AutoTokenizer.from_pretrained(loaded.folder))
    return [encode(question) for question in QUESTIONS]


def run(loaded: LoadedModel, prompts: Sequence[list[int]], drafter: Drafter | None) -> list[Request]:
    """Add all prompts at once and step until they are done, integrity checked at every step."""
    speculator = None if drafter is None else EagerSpeculation(drafter, DRAFT_TOKENS)
    runner = ModelRunner(loaded.model, CONFIG.num_blocks, CONFIG.block_size)
    engine = Engine(CONFIG, runner, loaded.identity, Detokenizer(lambda _ids: ""), speculator=speculator)
    params = SamplingParams(max_tokens=NUM_TOKENS)
    requests = [engine.add(str(index), prompt, params) for index, prompt in enumerate(prompts)]
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests


@pytest.fixture(scope="module")
def plain(loaded: LoadedModel, prompts: list[list[int]]) -> list[Request]:
    """What comes without drafts; that this is what transformers generates is tested beside."""
    return run(loaded, prompts, None)


def accepted_share(requests: Sequence[Request]) -> float:
    drafted = sum(request.figures.drafted_tokens for request in requests)
    return sum(request.figures.accepted_tokens for request in requests) / drafted


def assert_same(found: Sequence[Request], expected: Sequence[Request]) -> None:
    assert [request.output_token_ids for request in found] == [request.output_token_ids for request in expected]
    assert [request.finish_reason for request in found] == [request.finish_reason for request in expected]


def test_prompt_lookup(loaded: LoadedModel, prompts: list[list[int]], plain: list[Request]) -> None:
    found = run(loaded, prompts, PromptLookup())
    assert_same(found, plain)
    assert accepted_share(found) > 0.0


@pytest.mark.parametrize(("num_layers", "least", "most"), [(None, 0.95, 1.0), (24, 0.05, 0.8)])
def test_draft_model(
    loaded: LoadedModel,
    prompts: list[list[int]],
    plain: list[Request],
    num_layers: int | None,
    least: float,
    most: float,
) -> None:
    """The model itself, which is wrong only where it drafts on behind an end, and its first layers alone."""
    drafting = loaded if num_layers is None else first_layers(loaded, num_layers)
    found = run(loaded, prompts, drafter_of(drafting, CONFIG, loaded.identity.vocab_size))
    assert_same(found, plain)
    assert least < accepted_share(found) <= most
