"""Triton's draws against their oracle: the same token for the same uniform number."""

import math
import random

import pytest
import torch
from torch import Tensor

from kernels import reference, triton_sampling
from kernels.draws import Draws
from tests.kernels.triton_device import triton_device

DEVICE = triton_device()
TOP_KS = (0, 1, 2, 7, 50, 4000, 5000, 6000)
TOP_PS = (1.0, 0.999, 0.9, 0.5, 0.01, 1e-300)
MIN_PS = (0.0, 1e-4, 0.02, 0.5, 1.0)
NUM_ROWS = 200 if DEVICE.type == "cuda" else 10  # a draw takes the interpreter a third of a second
TEMPERATURES = (1.0, 0.05, 0.7, 1.3, 3.0, 30.0)

Rule = tuple[float, int, float, float]  # temperature, top_k, top_p, min_p


def draws_of(rules: list[Rule], uniforms: list[float], rows: list[int] | None = None) -> Draws:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=DEVICE)

    def integers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=DEVICE)

    temperatures, top_ks, top_ps, min_ps = zip(*rules, strict=True)
    return Draws(
        rows=integers(list(range(len(rules))) if rows is None else rows),
        temperatures=column(list(temperatures)),
        top_ks=integers(list(top_ks)),
        top_ps=column(list(top_ps)),
        min_ps=column(list(min_ps)),
        uniforms=column(uniforms),
    )


def draw_one(logits: list[float], rule: Rule, uniform: float) -> int:
    return int(triton_sampling.draw(torch.tensor([logits], device=DEVICE), draws_of([rule], [uniform]))[0])


def random_rules(generator: random.Random, number: int) -> list[Rule]:
    return [
        (
            generator.choice(TEMPERATURES),
            generator.choice(TOP_KS),
            generator.choice(TOP_PS),
            generator.choice(MIN_PS),
        )
        for _ in range(number)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocab_size", [1, 100, 5000])
def test_draws_what_the_oracle_does(vocab_size: int, dtype: torch.dtype) -> None:
    """Logits of a narrow type have many ties."""
    torch.manual_seed(vocab_size)
    generator = random.Random(vocab_size)
    logits = (torch.randn(NUM_ROWS, vocab_size) * 4).to(dtype).float().to(DEVICE)
    draws = draws_of(random_rules(generator, NUM_ROWS), [generator.random() for _ in range(NUM_ROWS)])
    assert triton_sampling.draw(logits, draws).tolist() == reference.draw(logits, draws).tolist()


@pytest.mark.parametrize("rule", [(0.8, 0, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 0, 0.8, 0.0), (2.0, 6, 0.9, 0.1)])
def test_every_uniform_number_draws_what_the_oracle_does(rule: Rule) -> None:
    logits = torch.tensor([[0.3, -1.0, 2.0, 1.1, -0.0, 1.7, 0.0, 1.1]], device=DEVICE)
    uniforms = [index / 8 + 1e-3 for index in range(8)] + [math.nextafter(1.0, 0.0)]
    draws = draws_of([rule] * len(uniforms), uniforms, [0] * len(uniforms))
    assert triton_sampling.draw(logits, draws).tolist() == reference.draw(logits, draws).tolist()


def test_among_equal_logits_the_lower_ids_are_kept_and_come_first() -> None:
    logits = [1.0, 5.0, 2.0, 5.0, 5.0, 5.0]
    uniforms = (0.0, 0.3, 0.5, 0.7, 0.99)
    assert [draw_one(logits, (1.0, 2, 1.0, 0.0), uniform) for uniform in uniforms] == [1, 1, 3, 3, 3]
    assert [draw_one(logits, (1e-3, 0, 0.5, 0.0), uniform) for uniform in uniforms] == [1, 1, 3, 3, 3]
    assert [draw_one(logits, (1e-3, 0, 0.51, 0.0), uniform) for uniform in uniforms] == [1, 1, 3, 4, 4]


def test_zeros_of_both_signs_are_equal() -> None:
    assert [draw_one([0.0, -0.0, 0.0], (1.0, 2, 1.0, 0.0), uniform) for uniform in (0.1, 0.9)] == [0, 1]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # the interpreter's; it is meant
@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 1e-300, 5e-324])
def test_tiny_temperature_takes_the_largest(temperature: float) -> None:
    assert draw_one([0.0, 1.0, 1.0001, -3.0], (temperature, 0, 1.0, 0.0), 0.999) == 2


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_huge_temperature_is_uniform_but_for_what_is_masked() -> None:
    logits = [0.0, 50.0, -math.inf, -50.0, 20.0]
    found = [draw_one(logits, (1e300, 0, 1.0, 0.0), uniform) for uniform in (0.1, 0.3, 0.6, 0.9)]
    assert found == [1, 4, 0, 3]


def test_masked_tokens_are_never_drawn() -> None:
    logits = [-math.inf, 1.0, -math.inf, 1.0]
    for rule in [(1.0, 0, 1.0, 0.0), (1.0, 3, 1.0, 0.0), (1.0, 0, 0.999, 0.0)]:
        assert [draw_one(logits, rule, uniform) for uniform in (0.0, 0.49, 0.51, 0.999)] == [1, 1, 3, 3]


def test_a_draw_does_not_depend_on_the_others() -> None:
    torch.manual_seed(1)
    generator = random.Random(1)
    logits = torch.randn(6, 5000, device=DEVICE).bfloat16().float()
    rules, uniforms = random_rules(generator, 6), [generator.random() for _ in range(6)]
    together = triton_sampling.draw(logits, draws_of(rules, uniforms)).tolist()
    order = generator.sample(range(6), 4)
    logits[[row for row in range(6) if row not in order]] = torch.nan
    some = triton_sampling.draw(
        logits, draws_of([rules[row] for row in order], [uniforms[row] for row in order], order)
    )
    assert some.tolist() == [together[row] for row in order]


def test_rows_may_be_apart() -> None:
    torch.manual_seed(2)
    logits = torch.full((3, 2, 64), torch.nan, device=DEVICE)
    logits[:, 0] = torch.randn(3, 64)
    draws = draws_of([(1.0, 0, 0.9, 0.0)] * 3, [0.2, 0.5, 0.8])
    assert torch.equal(triton_sampling.draw(logits[:, 0], draws), reference.draw(logits[:, 0], draws))


def test_too_wide_a_row_is_named() -> None:
    logits = torch.empty(1, 2**22 + 1, device=DEVICE)
    with pytest.raises(ValueError, match="vocab_size is 4194305; it must be at most 4194304"):
        triton_sampling.draw(logits, draws_of([(1.0, 0, 1.0, 0.0)], [0.5]))
