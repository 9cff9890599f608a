"""Asynchronous scheduling with models: what is sampled on the device reaches the next step there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import LlamaConfig

from engine.engine import Engine
from engine.forking import Output
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.request import FinishReason, Request, RequestError, SamplingParams
from engine.step_plan import SchedulerOutput
from tests.engine.tiny_models import load, make_engine, random_model

VOCAB_SIZE = 96
ENDS = frozenset(range(0, VOCAB_SIZE, 7))
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
    # For these the newest token must be known: the whole step chooses late.
    "presence": {"presence_penalty": 1.0, "temperature": 1.0, "logprobs": 2},
    "repetition": {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "min_tokens": 4},
    "grammar": {"temperature": 1.2, "seed": 4, "logprobs": 1, "stop_token_ids": ENDS},
}


class Thirds:
    """Forbids a third of the tokens, which third depends on the output. Behind an end it fails, as real grammars do."""

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        if not ENDS.isdisjoint(output_token_ids):
            raise RequestError("grammar_failed", "the output has ended")
        return np.array([(token + sum(output_token_ids)) % 3 != 0 for token in range(VOCAB_SIZE)])


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


def watched(loaded: LoadedModel, **changes: Any) -> tuple[Engine, list[SchedulerOutput]]:
    """Return an engine, and the plans that it launches."""
    engine = make_engine(loaded, token_budget=16, max_num_seqs=12, **changes)
    plans: list[SchedulerOutput] = []
    launched = engine.scheduler.launched

    def noted(plan: SchedulerOutput) -> None:
        plans.append(plan)
        launched(plan)

    engine.scheduler.launched = noted  # type: ignore[method-assign]
    return engine, plans


def outputs(engine: Engine, names: list[str]) -> list[Request]:
    """Return the requests of every way, added in portions."""
    requests: list[Request] = []
    for name in names:
        params = SamplingParams(max_tokens=14, ignore_eos=True, **WAYS[name])  # type: ignore[arg-type]
        for index, prompt in enumerate(PROMPTS):
            grammar = Thirds() if name == "grammar" else None
            requests.append(engine.add(f"{name} {index}", prompt, params, grammar=grammar))
        for _ in range(3):
            engine.step()
    while engine.has_work:
        engine.step()
        engine.lineup.check_integrity()
    return requests


def assert_same(found: Sequence[Request], expected: Sequence[Request]) -> None:
    """Requests ended alike, with the same outputs."""
    for ahead, one in zip(found, expected, strict=True):
        assert ahead.output_token_ids == one.output_token_ids
        assert (ahead.finish_reason, ahead.request_id) == (one.finish_reason, one.request_id)
        assert len(ahead.logprobs) == len(one.logprobs) == (ahead.num_output_tokens if ahead.logprobs else 0)
        for of_ahead, of_one in zip(ahead.logprobs, one.logprobs, strict=True):
            assert of_ahead.logprob == pytest.approx(of_one.logprob, abs=1e-4)
            assert [token for token, _ in of_ahead.top] == [token for token, _ in of_one.top]


@pytest.mark.parametrize("names", [*([name] for name in WAYS), [*WAYS][:-3], [*WAYS]], ids="+".join)
def test_outputs_are_those_of_one_step_at_a_time(loaded: LoadedModel, names: list[str]) -> None:
    in_turn, plans_in_turn = watched(loaded)
    ahead, plans = watched(loaded, async_scheduling=True)
    assert_same(outputs(ahead, names), outputs(in_turn, names))
    assert not any(plan.is_ahead for plan in plans_in_turn)
    assert [plan.is_ahead for plan in plans].count(False) == 1


def test_outputs_of_one_prompt_are_those_of_one_step_at_a_time(loaded: LoadedModel) -> None:
    wanted = [
        Output(SamplingParams(max_tokens=12, seed=index, ignore_eos=True, **WAYS[name]), grammar)  # type: ignore[arg-type]
        for index, (name, grammar) in enumerate((("presence", None), ("repetition", None), ("biased", Thirds())))
    ]
    engines = [watched(loaded), watched(loaded, async_scheduling=True)]
    found = []
    for engine, _ in engines:
        found.append([*engine.add_group("group", PROMPTS[3], wanted)])
        while engine.has_work:
            engine.step()
            engine.lineup.check_integrity()
    assert_same(found[1], found[0])
    assert len({tuple(request.output_token_ids) for request in found[1]}) == 3
    assert [plan.is_ahead for plan in engines[1][1]][:5] == [False, True, False, True, True]


def test_a_grammar_is_not_asked_behind_the_end(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is computed once more in vain; a failure there would put every block in doubt."""
    scrubbed: list[int] = []
    monkeypatch.setattr(ModelRunner, "scrub", lambda runner, block_ids: scrubbed.extend(block_ids))
    engine, _ = watched(loaded, async_scheduling=True)
    requests = outputs(engine, ["grammar"])
    assert any(request.finish_reason is FinishReason.STOP for request in requests)
    assert scrubbed == []
