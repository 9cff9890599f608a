"""The phases of an attempt, from what its usage says of when it came how far: the bars of a waterfall."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from worker.records import AttemptUsage


class Phase(StrEnum):
    """What an attempt is about, in the order of its life."""

    TOKENIZING = "tokenizing"  # waiting for the tokenizer included
    ENGINE_QUEUE = "waiting for the engine"
    PREFILL = "prefill"
    DECODE = "decode"
    PERSISTING = "writing to SQL"


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase; times are milliseconds since the claim."""

    phase: Phase
    began_ms: float
    ended_ms: float

    @property
    def took_ms(self) -> float:
        return self.ended_ms - self.began_ms


def phases_of(usage: AttemptUsage) -> Iterator[PhaseSpan]:
    """Yield the phases that an attempt went through. One that was cut short lasted until its end was written."""
    ends = {
        Phase.TOKENIZING: usage.tokenized_ms,
        Phase.ENGINE_QUEUE: usage.admitted_ms,
        Phase.PREFILL: usage.first_token_ms,
        Phase.DECODE: usage.last_token_ms,
    }
    began_ms = 0.0
    current = Phase.PERSISTING
    for phase, ended_ms in ends.items():
        if ended_ms is None:
            current = phase
            break
        yield PhaseSpan(phase, began_ms, ended_ms)
        began_ms = ended_ms
    if usage.committed_ms is not None:
        yield PhaseSpan(current, began_ms, usage.committed_ms)
