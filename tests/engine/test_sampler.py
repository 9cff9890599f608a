"""Sampling against a plain-Python oracle, by distribution, and independence from the rest of the batch."""

import math
import random
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.request import Request, RequestError, SamplingParams
from engine.sampler import sample
from tests.engine.fake_model import EOS
from tests.engine.fakes import make_request

VOCAB_SIZE = 8
NUM_DRAWS = 4000
CHI_SQUARE_LIMIT = 24.3  # 7 degrees of freedom: exceeded by chance once in a thousand; the seeds are fixed


def sample_one(logits: Tensor, **params: Any) -> int:
    token = sample(logits.clone().unsqueeze(0), [make_request(**params)])[0]
    assert isinstance(token, int)
    return token


def draw_many(logits: Tensor, **params: Any) -> list[int]:
    """Return one draw for each of many seeds."""
    requests = [make_request(seed=seed, **params) for seed in range(NUM_DRAWS)]
    tokens = sample(logits.repeat(NUM_DRAWS, 1), requests)
    assert all(isinstance(token, int) for token in tokens)
    return [token for token in tokens if isinstance(token, int)]


def kept_probabilities(logits: Tensor, params: SamplingParams) -> dict[int, float]:
    """Return what may be drawn and how likely: after temperature, top-k, then top-p, then min-p, in plain Python."""
    scaled = [value / params.temperature for value in logits.tolist()]
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    order = order[: params.top_k] if params.top_k else order
    weights = {token: math.exp(scaled[token] - max(scaled)) for token in order}
    total = sum(weights.values())
    kept: dict[int, float] = {}
    before = 0.0
    for token in order:
        probability = weights[token] / total
        if token != order[0] and (before >= params.top_p or probability < params.min_p * weights[order[0]] / total):
            break
        kept[token] = probability
        before += probability
    return {token: probability / sum(kept.values()) for token, probability in kept.items()}


def chi_square(tokens: list[int], expected: dict[int, float]) -> float:
    counts = Counter(tokens)
    assert set(counts) <= set(expected)
    return sum((counts[t] - len(tokens) * p) ** 2 / (len(tokens) * p) for t, p in expected.items())


def test_greedy_takes_the_largest() -> None:
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    requests = [make_request(request_id=str(index)) for index in range(5)]
    assert sample(logits.clone(), requests) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"temperature": 1.0, "top_k": 3},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 2.0, "top_k": 100},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 1.0, "top_p": 0.01},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.5, "top_k": 6, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 1.1, 0.0, 1.7, -0.4, 0.9])
    expected = kept_probabilities(logits, make_request(**params).params)
    assert chi_square(draw_many(logits, **params), expected) < CHI_SQUARE_LIMIT


def test_all_filters_together_never_pick_what_they_mask() -> None:
    generator = random.Random(0)
    for seed in range(300):
        logits = torch.tensor([generator.gauss(0, 3) for _ in range(VOCAB_SIZE)])
        params: dict[str, Any] = {
            "temperature": generator.choice([0.1, 0.7, 1.0, 5.0]),
            "top_k": generator.randint(0, VOCAB_SIZE + 1),
            "top_p": generator.uniform(0.05, 1.0),
            "min_p": generator.choice([0.0, generator.random()]),
        }
        kept = kept_probabilities(logits, make_request(**params).params)
        assert sample_one(logits, seed=seed, **params) in kept


def test_top_p_that_is_reached_exactly_keeps_no_more() -> None:
    assert set(draw_many(torch.tensor([0.0, 5.0, 5.0, 0.0]), temperature=1e-3, top_p=0.5)) == {1}


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300, 5e-324])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([0.0, 1.0, 1.0001, -3.0])
    for seed in range(50):
        assert sample_one(logits, temperature=temperature, seed=seed) == 2


def test_huge_temperature_is_uniform() -> None:
    tokens = draw_many(torch.tensor([0.0, 50.0, -50.0, 20.0] * 2), temperature=1e300)
    assert chi_square(tokens, dict.fromkeys(range(8), 1 / 8)) < CHI_SQUARE_LIMIT


def test_each_position_draws_anew() -> None:
    logits = torch.zeros(VOCAB_SIZE)
    requests = [make_request(output=[5] * length, max_tokens=NUM_DRAWS, temperature=1.0) for length in range(NUM_DRAWS)]
    tokens = [token for token in sample(logits.repeat(NUM_DRAWS, 1), requests) if isinstance(token, int)]
    assert chi_square(tokens, dict.fromkeys(range(VOCAB_SIZE), 1 / VOCAB_SIZE)) < CHI_SQUARE_LIMIT


def test_largest_seed() -> None:
    assert sample_one(torch.zeros(VOCAB_SIZE), temperature=1.0, seed=2**63 - 1) in range(VOCAB_SIZE)


BATCH: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 5, "min_p": 0.02},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 41},
]


@pytest.mark.parametrize("seed", range(40))
def test_tokens_do_not_depend_on_the_batch(seed: int) -> None:
    """Logits of a bfloat16 model have many ties: which of them come first must not depend on the neighbours."""
    logits = torch.randn(len(BATCH), 3000, generator=torch.Generator().manual_seed(seed)).bfloat16().float()
    requests = [make_request(request_id=str(i), seed=seed + i, **params) for i, params in enumerate(BATCH)]
    together = sample(logits.clone(), requests)
    alone = [sample(logits[i : i + 1].clone(), [request])[0] for i, request in enumerate(requests)]
    assert together == alone
    order = torch.randperm(len(BATCH), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = sample(logits[order].clone(), [requests[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(len(BATCH))] == together


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_bans_stops(temperature: float) -> None:
    logits = torch.tensor([9.0, 1.0, 8.0, 2.0])
    stops = frozenset({2})
    for num_output, may_stop in ((0, False), (1, False), (2, True)):
        request = make_request(
            output=[1] * num_output, min_tokens=2, stop_token_ids=stops, temperature=temperature, seed=num_output
        )
        (token,) = sample(logits.clone().unsqueeze(0), [request])
        assert (token in {EOS, 2}) == may_stop


def test_ignored_end_of_sequence_is_not_banned() -> None:
    request = make_request(min_tokens=2, ignore_eos=True)
    assert sample(torch.tensor([[9.0, 1.0]]), [request]) == [EOS]


def rows_with(values: dict[int, float]) -> tuple[Tensor, list[Request]]:
    """Return random logits of six requests, greedy and not, with a value put into some rows."""
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    requests = [make_request(request_id=str(row), temperature=float(row % 2), seed=row) for row in range(6)]
    for row, value in values.items():
        logits[row, 17] = value
    return logits, requests


def test_row_that_is_not_finite_ends_only_itself() -> None:
    sound = sample(*rows_with({}))
    tokens = sample(*rows_with({1: math.nan, 2: math.nan, 4: math.inf, 5: math.inf}))
    assert [tokens[row] for row in (0, 3)] == [sound[row] for row in (0, 3)]
    for row in (1, 2, 4, 5):
        error = tokens[row]
        assert isinstance(error, RequestError)
        assert error.code == "numerical_error"


def test_minus_infinity_is_a_mask_and_no_error() -> None:
    logits, requests = rows_with({0: -math.inf, 1: -math.inf})
    assert all(isinstance(token, int) and token != 17 for token in sample(logits, requests)[:2])


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((VOCAB_SIZE,), -math.inf)
    logits[3] = logits[6] = 1.0
    assert set(draw_many(logits, temperature=2.0)) == {3, 6}


def test_all_rows_not_finite() -> None:
    tokens = sample(torch.full((2, 5), math.nan), [make_request(temperature=1.0), make_request()])
    assert all(isinstance(token, RequestError) for token in tokens)


@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("max_tokens", 0, "at least 1"),
        ("min_tokens", 17, "between 0 and max_tokens"),
        ("min_tokens", -1, "between 0 and max_tokens"),
        ("temperature", -0.1, "finite and at least 0"),
        ("temperature", math.nan, "finite and at least 0"),
        ("temperature", math.inf, "finite and at least 0"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.1, "above 0 and at most 1"),
        ("top_p", math.nan, "above 0 and at most 1"),
        ("min_p", -0.1, "between 0 and 1"),
        ("min_p", math.nan, "between 0 and 1"),
        ("seed", -1, r"between 0 and 2\*\*63 - 1"),
        ("seed", 2**63, r"between 0 and 2\*\*63 - 1"),
        ("stop", ("a", ""), "made of non-empty strings"),
    ],
)
def test_parameter_out_of_range_is_named(field: str, value: object, limit: str) -> None:
    params: dict[str, Any] = {field: value}
    with pytest.raises(RequestError, match=f"^{field} is .*; it must be {limit}$") as raised:
        make_request(**params)
    assert raised.value.code == "invalid_parameter"
