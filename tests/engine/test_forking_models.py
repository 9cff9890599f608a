"""Several outputs of one prompt on a real model's KV: each is what its seed gives alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from engine.forking import Output, seed_of_output
from engine.model_loader import LoadedModel
from engine.request import SamplingParams
from tests.engine.tiny_configs import SIZES
from tests.engine.tiny_models import load, make_engine, random_model

PARAMS = SamplingParams(max_tokens=9, temperature=0.7, ignore_eos=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder: Path = tmp_path_factory.mktemp("llama")
    return load(random_model(transformers.LlamaConfig(**SIZES)), folder)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_prompt_tokens", [16, 18])  # one fills its blocks, the other does not
def test_each_output_is_what_its_seed_gives_alone(llama: LoadedModel, num_prompt_tokens: int, caching: bool) -> None:
    prompt = [(7 * position) % 90 + 3 for position in range(num_prompt_tokens)]
    params = [replace(PARAMS, seed=seed_of_output(5, index), logprobs=1) for index in range(4)]
    engine = make_engine(llama, enable_prefix_caching=caching, token_budget=64)
    group = engine.add_group("g", prompt, [Output(each) for each in params])
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    for request, each in zip(group, params, strict=True):
        alone_engine = make_engine(llama)
        alone = alone_engine.add("alone", prompt, each)
        while alone_engine.has_work:
            alone_engine.step()
        assert request.output_token_ids == alone.output_token_ids
        for mine, theirs in zip(request.logprobs, alone.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
    assert len({tuple(request.output_token_ids) for request in group}) > 1
