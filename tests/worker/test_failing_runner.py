"""Faults within the model: they are as real as they claim to be, and meet whom they are meant for."""

from collections.abc import Sequence

import pytest
import transformers

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.quarantine import EngineBroken
from engine.request import FinishReason, Request, SamplingParams
from tests.engine.tiny_configs import CONTEXT, SIZES
from tests.engine.tiny_models import load, random_model
from tests.torch_threads import one_thread  # noqa: F401
from worker.running.failing_runner import FailingRunner
from worker.running.failpoints import parse_faults

PROMPTS = ("the good one", "the bad one", "another good one")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(random_model(transformers.LlamaConfig(**SIZES)), tmp_path_factory.mktemp("model"))


def decode(token_ids: Sequence[int]) -> str:
    return "".join(chr(token + 32) for token in token_ids)


detokenize = Detokenizer(decode)


def make_engine(loaded: LoadedModel, faults: str) -> Engine:
    config = EngineConfig(num_blocks=100, max_model_len=CONTEXT, block_size=8, token_budget=256)
    runner = ModelRunner(loaded.model, config.num_blocks, config.block_size)
    return Engine(config, FailingRunner(runner, parse_faults(faults), detokenize), loaded.identity, detokenize)


def add_all(engine: Engine) -> list[Request]:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return [engine.add(prompt, [ord(letter) - 32 for letter in prompt], params) for prompt in PROMPTS]


def run(engine: Engine) -> list[Request]:
    requests = add_all(engine)
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests


def test_nan_ends_its_own_request_only(loaded: LoadedModel) -> None:
    sound = run(make_engine(loaded, ""))
    good, bad, other = run(make_engine(loaded, "in_step(bad)=nan@4"))
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert bad.error.code == "numerical_error"
    assert bad.num_output_tokens == 3
    assert [good.token_ids, other.token_ids] == [sound[0].token_ids, sound[2].token_ids]


def test_marker_finds_the_steps_with_its_prompt(loaded: LoadedModel) -> None:
    good, bad, other = run(make_engine(loaded, "in_step(bad)=raise"))
    assert bad.error is not None
    assert bad.error.code == "step_failed"
    assert (good.num_output_tokens, other.num_output_tokens) == (12, 12)


def test_fault_without_an_end_breaks_the_engine(loaded: LoadedModel) -> None:
    engine = make_engine(loaded, "in_step=raise@3-")
    with pytest.raises(EngineBroken):
        run(engine)


def test_out_of_memory_costs_nobody_anything(loaded: LoadedModel) -> None:
    sound = run(make_engine(loaded, ""))
    assert [r.token_ids for r in run(make_engine(loaded, "in_step=oom@2"))] == [r.token_ids for r in sound]
