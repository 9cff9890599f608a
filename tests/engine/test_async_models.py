"""Asynchronous scheduling with models: what is sampled on the device reaches the next step there."""

from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from engine.engine import Engine
from engine.model_loader import LoadedModel
from engine.request import Request, SamplingParams
from engine.step_plan import SchedulerOutput
from tests.engine.tiny_models import load, make_engine, random_model

VOCAB_SIZE = 96
PROMPTS = [[5, 6, 7, 8, 9, 10], [5, 6, 7, 8, 40, 41, 42], [11, 12], list(range(20, 50)), [5, 6, 7, 8, 9, 10, 11, 3]]
WAYS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 7},
    "cut": {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    "log-probabilities": {"temperature": 0.7, "seed": 5, "logprobs": 3},
    "log-probabilities to a stop": {"temperature": 1.0, "logprobs": 2, "stop_token_ids": frozenset(range(0, 96, 5))},
    "more log-probabilities": {"temperature": 1.0, "logprobs": 5},
    "biased": {"logit_bias": ((4, 5.0), (60, -5.0)), "temperature": 1.0},
    "late stop": {"min_tokens": 6, "stop_token_ids": frozenset(range(0, VOCAB_SIZE, 2))},
    "early stop": {"stop_token_ids": frozenset(range(0, VOCAB_SIZE, 5)), "temperature": 1.0, "seed": 2},
    "penalties": {"presence_penalty": 1.0, "temperature": 1.0},  # for which the newest token must be known
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    folder: Path = tmp_path_factory.mktemp("llama")
    return load(random_model(config), folder)


def outputs(engine: Engine, names: list[str]) -> tuple[list[Request], list[bool]]:
    """Return the requests of every way, added in two portions, and which steps were ahead."""
    aheads: list[bool] = []
    launched = engine.scheduler.launched

    def noted(plan: SchedulerOutput) -> None:
        aheads.append(plan.is_ahead)
        launched(plan)

    engine.scheduler.launched = noted  # type: ignore[method-assign]
    requests: list[Request] = []
    for name in names:
        params = SamplingParams(max_tokens=14, ignore_eos=True, **WAYS[name])  # type: ignore[arg-type]
        requests += [engine.add(f"{name} {index}", prompt, params) for index, prompt in enumerate(PROMPTS)]
        for _ in range(3):
            engine.step()
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests, aheads


@pytest.mark.parametrize("names", [*([name] for name in WAYS), [*WAYS][:-1], [*WAYS]], ids="+".join)
def test_outputs_are_those_of_one_step_at_a_time(loaded: LoadedModel, names: list[str]) -> None:
    changes: dict[str, Any] = {"token_budget": 16, "max_num_seqs": 12}
    expected, in_turn = outputs(make_engine(loaded, **changes), names)
    requests, aheads = outputs(make_engine(loaded, async_scheduling=True, **changes), names)
    assert not any(in_turn)
    assert any(aheads) == (names != ["penalties"])
    for ahead, one in zip(requests, expected, strict=True):
        assert ahead.output_token_ids == one.output_token_ids
        assert (ahead.finish_reason, ahead.request_id) == (one.finish_reason, one.request_id)
        assert len(ahead.logprobs) == len(one.logprobs) == (ahead.num_output_tokens if ahead.logprobs else 0)
        for of_ahead, of_one in zip(ahead.logprobs, one.logprobs, strict=True):
            assert of_ahead.logprob == pytest.approx(of_one.logprob, abs=1e-4)
            assert [token for token, _ in of_ahead.top] == [token for token, _ in of_one.top]
