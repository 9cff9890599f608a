"""One request's bad numbers and failing grammars end it alone: its neighbours keep every bit of their outputs."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.grammar import Grammar
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.request import FinishReason, Request, RequestError, SamplingParams
from engine.sampler import sample
from engine.step_plan import Launched, SchedulerOutput
from tests.engine.fakes import make_request
from tests.engine.tiny_configs import SERVED, VOCAB_SIZE
from tests.engine.tiny_models import load, make_engine, random_model

NUM_TOKENS = 8
BAD = "bad"
Spoil = Callable[[Tensor], None]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(random_model(SERVED["llama"]()), tmp_path_factory.mktemp("model"))


def fill(value: float) -> Spoil:
    @torch.inference_mode()
    def spoil(row: Tensor) -> None:
        row.fill_(value)

    return spoil


def one_entry(value: float) -> Spoil:
    @torch.inference_mode()
    def spoil(row: Tensor) -> None:
        row[7] = value

    return spoil


class AnyToken:
    """A grammar that allows everything, and does as it was told after some tokens."""

    def __init__(self, failure: Exception | None = None, after: int = 3) -> None:
        self._failure = failure
        self._after = after

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        if self._failure is not None and len(output_token_ids) >= self._after:
            raise self._failure
        return np.ones(VOCAB_SIZE, dtype=np.bool_)


def generate(
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    spoil: Spoil | None = None,
    grammar: Grammar | None = None,
    temperature: float = 0.0,
) -> list[Request]:
    """Run a batch of five, of which the third is told to fail after three tokens; that one comes first."""
    engine = make_engine(loaded, token_budget=64)
    plans: list[SchedulerOutput] = []
    launch, forward = ModelRunner.launch, loaded.model.forward

    def launch_noted(runner: ModelRunner, plan: SchedulerOutput) -> Launched:
        plans.append(plan)
        return launch(runner, plan)

    def forward_spoilt(*arguments: object) -> Tensor:
        logits = forward(*arguments)  # type: ignore[arg-type]
        for row, share in enumerate(plans[-1].scheduled):
            if spoil is not None and share.request.request_id == BAD and share.request.num_output_tokens == 3:
                spoil(logits[row])
        return logits

    requests = []
    with monkeypatch.context() as patched:
        patched.setattr(ModelRunner, "launch", launch_noted)
        patched.setattr(loaded.model, "forward", forward_spoilt)
        for index in range(5):
            params = SamplingParams(
                max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3, temperature=temperature, seed=index
            )
            name = BAD if index == 2 else str(index)
            requests.append(
                engine.add(name, range(3, 6 + 4 * index), params, grammar=grammar if name == BAD else AnyToken())
            )
        while engine.has_work:
            engine.step()
            engine.lineup.check_integrity()
    bad = requests.pop(2)
    return [bad, *requests]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("spoil", "grammar", "code"),
    [
        (fill(float("nan")), None, "numerical_error"),
        (fill(float("inf")), None, "numerical_error"),
        (fill(float("-inf")), None, "numerical_error"),
        (one_entry(float("nan")), None, "numerical_error"),
        (one_entry(float("inf")), None, "numerical_error"),
        (one_entry(float("nan")), AnyToken(), "numerical_error"),
        (one_entry(float("inf")), AnyToken(), "numerical_error"),
        (None, AnyToken(RuntimeError("a bug")), "grammar_failed"),
        (None, AnyToken(RequestError("grammar_failed", "too large")), "grammar_failed"),
        (None, AnyToken(MemoryError("no memory")), "grammar_failed"),
    ],
)
def test_neighbours_keep_every_bit(
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Spoil | None,
    grammar: Grammar | None,
    code: str,
    temperature: float,
) -> None:
    (sane, *expected) = generate(loaded, monkeypatch, grammar=AnyToken(), temperature=temperature)
    (bad, *neighbours) = generate(loaded, monkeypatch, spoil=spoil, grammar=grammar, temperature=temperature)
    assert sane.finish_reason is FinishReason.LENGTH
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert bad.error.code == code
    assert bad.output_token_ids == sane.output_token_ids[:3]
    assert [request.output_token_ids for request in neighbours] == [request.output_token_ids for request in expected]
    assert [request.logprobs for request in neighbours] == [request.logprobs for request in expected]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_end_that_may_not_come_yet_hides_nothing_that_is_not_finite(value: float) -> None:
    request = make_request(min_tokens=2, stop_token_ids=frozenset({7}))
    logits = torch.zeros(1, VOCAB_SIZE)
    one_entry(value)(logits[0])
    (result,) = sample(logits, [request])
    assert isinstance(result, RequestError)
    assert result.code == "numerical_error"


def test_requests_of_a_float32_model_may_change_its_logits(loaded: LoadedModel) -> None:
    engine = make_engine(loaded)
    biased = SamplingParams(max_tokens=4, ignore_eos=True, logit_bias=((7, 100.0),), frequency_penalty=0.5)
    request = engine.add("biased", [3, 4, 5], biased)
    while engine.has_work:
        engine.step()
    assert request.output_token_ids == [7] * 4


def test_mask_of_the_models_own_is_no_error(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    (masked, *_) = generate(loaded, monkeypatch, spoil=one_entry(float("-inf")), grammar=AnyToken())
    assert masked.finish_reason is FinishReason.LENGTH
    assert torch.isfinite(torch.tensor([one.logprob for one in masked.logprobs])).all()
