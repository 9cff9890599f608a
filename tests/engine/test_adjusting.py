"""Penalties, biases, grammars and log-probabilities: each changes its own row only, and is as plain Python has it."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from engine.request import Request, RequestError, SamplingParams
from engine.sampler import sample
from tests.engine.fake_model import EOS
from tests.engine.fakes import make_request

VOCAB_SIZE = 12

tokens = st.integers(0, VOCAB_SIZE - 1)
penalties = st.floats(-2.0, 2.0, width=32)


def logits_of(seed: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 4


def request_with(output: Sequence[int], **params: Any) -> Request:
    request = make_request(prompt=[3, 3, 5], **params)
    request.token_ids.extend(output)
    return request


def penalized(logits: Sequence[float], request: Request) -> list[float]:
    """Return the logits after penalties and biases, in plain Python."""
    params = request.params
    counts = Counter(request.output_token_ids)
    changed = list(logits)
    for token, value in enumerate(logits):
        if token in request.token_ids:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * counts[token] + params.presence_penalty * (counts[token] > 0)
        changed[token] = value + dict(params.logit_bias).get(token, 0.0)
    return changed


@given(
    seed=st.integers(0, 1000),
    output=st.lists(tokens, max_size=8),
    presence=penalties,
    frequency=penalties,
    repetition=st.floats(0.5, 2.0, width=32),
    bias=st.dictionaries(tokens, st.floats(-100.0, 100.0, width=32), max_size=3),
)
def test_greedy_choice_is_the_oracles(
    seed: int, output: list[int], presence: float, frequency: float, repetition: float, bias: dict[int, float]
) -> None:
    request = request_with(
        output,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=tuple(bias.items()),
        max_tokens=16,
    )
    logits = logits_of(seed)
    expected = penalized(logits[0].tolist(), request)
    (token,) = sample(logits, [request])
    assert isinstance(token, int)
    assert expected[token] == pytest.approx(max(expected), abs=1e-4)


def test_the_tally_follows_the_output() -> None:
    request = request_with([], frequency_penalty=2.0, max_tokens=64)
    chosen = []
    for _ in range(20):
        logits = torch.zeros(1, VOCAB_SIZE)
        logits[0, 7] = 1.0
        (token,) = sample(logits, [request])
        assert isinstance(token, int)
        request.token_ids.append(token)
        chosen.append(token)
    assert chosen[0] == 7
    assert max(Counter(chosen).values()) == 2  # one more of a token costs more than the 1.0 that speaks for 7


def test_neighbours_keep_every_bit() -> None:
    busy = {"presence_penalty": 1.0, "logit_bias": ((2, 5.0),), "logprobs": 3, "max_tokens": 16}
    plain = request_with([1, 2], max_tokens=16)
    logits = logits_of(4, rows=2)
    before = logits[1].clone()
    sample(logits, [request_with([1, 2], **busy), plain])
    assert torch.equal(logits[1], before)


class Only:
    """A grammar of one token, or of one that has come to an end."""

    def __init__(self, token: int | None, error: Exception | None = None) -> None:
        self.token = token
        self.error = error
        self.seen: list[list[int]] = []

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        self.seen.append(list(output_token_ids))
        if self.error is not None:
            raise self.error
        mask = np.zeros(VOCAB_SIZE - 2, dtype=np.bool_)
        if self.token is not None:
            mask[self.token] = True
        return mask


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_confines_its_own_request(temperature: float) -> None:
    request = request_with([1], temperature=temperature, max_tokens=16)
    request.grammar = grammar = Only(4)
    other = request_with([1], max_tokens=16)
    logits = logits_of(9, rows=2)
    expected = int(logits[1].argmax())
    assert sample(logits, [request, other]) == [4, expected]
    assert grammar.seen == [[1]]


@pytest.mark.parametrize(
    ("grammar", "code"),
    [
        (Only(None, RequestError("grammar_failed", "it is too hard")), "grammar_failed"),
        (Only(None, RuntimeError("a fault of the library")), "grammar_failed"),
        (Only(None), "numerical_error"),
    ],
)
def test_a_grammar_that_fails_ends_its_own_request(grammar: Only, code: str) -> None:
    request = request_with([1], max_tokens=16)
    request.grammar = grammar
    logits = logits_of(9, rows=2)
    expected = int(logits[1].argmax())
    error, token = sample(logits, [request, request_with([1], max_tokens=16)])
    assert isinstance(error, RequestError)
    assert error.code == code
    assert token == expected


def test_a_grammar_hides_nothing_that_is_not_finite() -> None:
    request = request_with([1], max_tokens=16)
    request.grammar = Only(4)
    logits = logits_of(9)
    logits[0, 5] = float("nan")
    (error,) = sample(logits, [request])
    assert isinstance(error, RequestError)
    assert error.code == "numerical_error"


def test_logprobs_are_the_models_own() -> None:
    """Before penalties, bias, temperature and cuts; one an output token, whatever is run again."""
    params = {"temperature": 0.5, "top_k": 2, "logit_bias": ((0, 100.0),), "logprobs": 2, "max_tokens": 16}
    request = request_with([], **params)
    logits = logits_of(3)
    expected = logits[0].double().log_softmax(dim=-1)
    for _ in range(2):
        (token,) = sample(logits.clone(), [request])
    assert token == 0
    (noted,) = request.logprobs
    assert noted.logprob == pytest.approx(float(expected[0]), abs=1e-5)
    assert [t for t, _ in noted.top] == expected.topk(2).indices.tolist()
    assert [p for _, p in noted.top] == pytest.approx(expected.topk(2).values.tolist(), abs=1e-5)
    request.token_ids.append(0)
    sample(logits_of(8), [request])
    assert len(request.logprobs) == 2


def test_no_logprobs_unless_asked_for() -> None:
    request = request_with([], max_tokens=16)
    sample(logits_of(3), [request])
    assert request.logprobs == []


def test_min_tokens_and_a_bias_towards_the_end() -> None:
    request = request_with([], min_tokens=1, logit_bias=((EOS, 100.0),), max_tokens=16)
    (token,) = sample(logits_of(3), [request])
    assert token != EOS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 2.5),
        ("presence_penalty", math.nan),
        ("frequency_penalty", -math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("logit_bias", ((1, 101.0),)),
        ("logit_bias", ((1, math.nan),)),
        ("logprobs", 21),
        ("logprobs", -1),
    ],
)
def test_values_out_of_range_name_their_field(field: str, value: object) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(max_tokens=1, **{field: value})  # type: ignore[arg-type]
