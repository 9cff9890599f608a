"""Engines on a fake model whose steps are planned ahead."""

from collections.abc import Iterable

from engine.request import Request, SamplingParams
from tests.engine.fake_model import continuation
from tests.engine.fakes import Harness, assert_as_alone, make_config

LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def make_ahead(**changes: object) -> Harness:
    return Harness(make_config(async_scheduling=True, **changes))


def aheads(harness: Harness) -> list[bool]:
    return [plan.is_ahead for plan in harness.runner.plans]


def first_output(prompt: list[int], number: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(continuation(tokens))
    return tokens[len(prompt) :]


def assert_all_as_alone(requests: Iterable[Request]) -> None:
    for request in requests:
        assert_as_alone(request)
