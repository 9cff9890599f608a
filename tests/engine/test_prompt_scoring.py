"""Log-probabilities of prompts, against transformers' own logits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine import prompt_scoring
from engine.admission import check_content
from engine.engine import Engine
from engine.forking import Output
from engine.model_loader import LoadedModel
from engine.request import Request, RequestError, SamplingParams
from tests.engine.tiny_configs import SERVED
from tests.engine.tiny_models import load, make_engine, random_model

PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=2)
LENGTHS = (30, 9, 2)
PROMPTS = [[(11 * position + length) % 90 + 3 for position in range(length)] for length in LENGTHS]
# Heads of every kind: plain, tied, with bias, scale or cap; layers of other names, and a decoder within.
ARCHITECTURES = ("llama", "llama-tied", "phi", "granite", "gemma2", "cohere2", "gpt2", "gpt-neox", "opt", "gpt-oss")


def scored_by_transformers(model: PreTrainedModel, prompt: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities behind each prompt token, [num_tokens, vocab_size]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(prompt)]), use_cache=False).logits
    return logits[0].float().log_softmax(dim=-1)


def check(request: Request, model: PreTrainedModel) -> None:
    prompt = request.token_ids[: request.num_prompt_tokens]
    expected = scored_by_transformers(model, prompt)
    assert len(request.prompt_logprobs) == len(prompt) - 1
    for position, noted in enumerate(request.prompt_logprobs):
        assert noted.logprob == pytest.approx(float(expected[position, prompt[position + 1]]), abs=1e-4)
        values, token_ids = expected[position].topk(2)
        assert [token for token, _ in noted.top] == token_ids.tolist()
        assert [logprob for _, logprob in noted.top] == pytest.approx(values.tolist(), abs=1e-4)


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return random_model(SERVED["llama"]())


@pytest.fixture(scope="module")
def llama(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(model, tmp_path_factory.mktemp("llama"))


def test_more_log_probabilities_than_can_be_told_are_refused() -> None:
    """Of a prompt of 100,000 tokens the likeliest twenty at each place would take gigabytes on their way."""
    prompt = [1] * 100_000
    check_content(prompt, SamplingParams(max_tokens=1, prompt_logprobs=4), vocab_size=2)
    with pytest.raises(
        RequestError, match="prompt_logprobs is 5 and prompt has 100000 tokens: together 600000"
    ) as caught:
        check_content(prompt, SamplingParams(max_tokens=1, prompt_logprobs=5), vocab_size=2)
    assert caught.value.code == "invalid_parameter"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architectures_head_is_its_own(architecture: str, tmp_path: Path) -> None:
    model = random_model(SERVED[architecture]())
    engine = make_engine(load(model, tmp_path))
    request = engine.add("r", PROMPTS[0], PARAMS)
    finish(engine)
    check(request, model)


@pytest.mark.parametrize("token_budget", [4, 512])
def test_in_chunks_beside_others_and_whatever_is_cached(
    llama: LoadedModel, model: PreTrainedModel, token_budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_scoring, "ROWS_AT_ONCE", 7)
    engine = make_engine(llama, token_budget=token_budget, max_num_seqs=4)
    engine.add("before", PROMPTS[0], replace(PARAMS, prompt_logprobs=None))
    finish(engine)
    asked = [engine.add(str(index), prompt, PARAMS) for index, prompt in enumerate(PROMPTS)]
    other = engine.add("other", PROMPTS[0], replace(PARAMS, prompt_logprobs=None))
    finish(engine)
    for request in asked:
        check(request, model)
    assert asked[0].figures.prefix_hit_tokens == 0
    assert other.figures.prefix_hit_tokens > 0
    assert other.prompt_logprobs == []
    assert asked[0].output_token_ids == other.output_token_ids


def test_the_first_of_several_outputs_asks(llama: LoadedModel, model: PreTrainedModel) -> None:
    engine = make_engine(llama, token_budget=8, max_num_seqs=4)
    outputs = [Output(PARAMS), Output(replace(PARAMS, prompt_logprobs=None, seed=1))]
    first, second = engine.add_group("g", PROMPTS[0], outputs)
    for num_steps in range(100):
        if not engine.has_work:
            break
        if num_steps in (2, 6):  # within the prompt, and behind it
            engine.lineup.restart()
        engine.step()
        engine.lineup.check_integrity()
    check(first, model)
    assert second.output_token_ids == first.output_token_ids


def test_how_many_is_bounded() -> None:
    with pytest.raises(RequestError, match="prompt_logprobs is 100000; it must be at most 20"):
        SamplingParams(max_tokens=1, prompt_logprobs=100_000)
