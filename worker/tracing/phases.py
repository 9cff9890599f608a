"""What became of a job and when, for its trace: a root from submission to acknowledgement, and its phases."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from worker.phases import Phase, phases_of
from worker.records import Outcome

NAMES = {
    Phase.TOKENIZING: "tokenize",
    Phase.ENGINE_QUEUE: "wait",
    Phase.PREFILL: "prefill",
    Phase.DECODE: "decode",
}


@dataclass(frozen=True, slots=True)
class TracePhase:
    """A part of a job's life. UTC, on Redis's clock, as are the other times of a job."""

    name: str
    began_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class JobTrace:
    """A job that has ended."""

    outcome: Outcome
    began_at: datetime  # submitted
    ended_at: datetime  # acknowledged
    phases: tuple[TracePhase, ...]


def trace_of(outcome: Outcome, committed_ms: float, acknowledged_ms: float) -> JobTrace:
    """Return the trace of a job whose result was committed and acknowledged so long after its claim. Phases that it
    did not come to are left out."""
    claim, usage = outcome.claim, outcome.usage
    began_at = min(claim.enqueued_at, claim.claimed_at)  # on the producer's clock, which may be ahead

    def at(milliseconds: float) -> datetime:
        return claim.claimed_at + timedelta(milliseconds=milliseconds)

    phases = [TracePhase("queue", began_at, claim.claimed_at)]
    phases += [
        TracePhase(NAMES[span.phase], at(span.began_ms), at(span.ended_ms))
        for span in phases_of(usage)
        if span.phase in NAMES
    ]
    commit_ms = committed_ms if usage.committed_ms is None else usage.committed_ms
    phases.append(TracePhase("commit", at(commit_ms), at(committed_ms)))
    phases.append(TracePhase("acknowledge", at(committed_ms), at(acknowledged_ms)))
    return JobTrace(outcome, began_at, at(acknowledged_ms), tuple(phases))
