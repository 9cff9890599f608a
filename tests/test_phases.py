"""The phases of an attempt, however far it came."""

from typing import Any

import pytest

from worker.phases import Phase, PhaseSpan, phases_of
from worker.records import AttemptUsage


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ({}, []),
        ({"committed_ms": 3.0}, [(Phase.TOKENIZING, 0.0, 3.0)]),
        ({"tokenized_ms": 2.0, "committed_ms": 3.0}, [(Phase.TOKENIZING, 0.0, 2.0), (Phase.ENGINE_QUEUE, 2.0, 3.0)]),
        (
            {"tokenized_ms": 2.0, "admitted_ms": 5.0, "committed_ms": 9.0},
            [(Phase.TOKENIZING, 0.0, 2.0), (Phase.ENGINE_QUEUE, 2.0, 5.0), (Phase.PREFILL, 5.0, 9.0)],
        ),
        (
            {
                "tokenized_ms": 2.0,
                "admitted_ms": 5.0,
                "first_token_ms": 9.0,
                "last_token_ms": 20.0,
                "committed_ms": 20.5,
            },
            [
                (Phase.TOKENIZING, 0.0, 2.0),
                (Phase.ENGINE_QUEUE, 2.0, 5.0),
                (Phase.PREFILL, 5.0, 9.0),
                (Phase.DECODE, 9.0, 20.0),
                (Phase.PERSISTING, 20.0, 20.5),
            ],
        ),
    ],
)
def test_phases_follow_one_another(points: dict[str, Any], expected: list[tuple[Phase, float, float]]) -> None:
    assert list(phases_of(AttemptUsage(**points))) == [PhaseSpan(*span) for span in expected]


def test_a_phase_takes_from_its_begin_to_its_end() -> None:
    assert PhaseSpan(Phase.PREFILL, 5.0, 9.5).took_ms == 4.5
