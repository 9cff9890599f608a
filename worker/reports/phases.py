"""What a job did from its submission to its commit, phase after phase."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from worker.reports.tables import Column, ReportTable
from worker.reports.units import Unit
from worker.sql.reporting import SlowJob


class Phase(Enum):
    """The phases of a job, in order."""

    QUEUED = "queued"  # enqueued -> claimed, earlier attempts included
    TOKENIZED = "tokenized"
    ADMITTED = "admitted"  # waiting until the engine first scheduled it
    PREFILL = "prefill"  # first scheduled -> first token
    DECODE = "decode"  # first -> last token
    COMMITTED = "committed"  # last token -> in SQL
    RUNNING = "running"  # claimed -> ended, where nothing between is known


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of a job, in milliseconds since it was enqueued."""

    phase: Phase
    start_ms: float
    end_ms: float

    @property
    def length_ms(self) -> float:
        """How long it took."""
        return self.end_ms - self.start_ms


PHASE_COLUMNS = (
    Column("phase", "phase", Unit.TEXT),
    Column("start_ms", "start", Unit.MILLISECONDS),
    Column("end_ms", "end", Unit.MILLISECONDS),
    Column("length_ms", "length", Unit.MILLISECONDS),
)


def phases_of(job: SlowJob) -> tuple[PhaseSpan, ...]:
    """Return the phases that are known of a job, from zero on and without gaps.

    Workers of earlier versions stored no more than the claim and the end.
    """
    marks = list(_marks(job))
    return tuple(
        PhaseSpan(phase, start, max(start, end)) for (_, start), (phase, end) in pairwise([(Phase.QUEUED, 0.0), *marks])
    )


def phase_table(job: SlowJob) -> ReportTable:
    """Return a row for each known phase of a job."""
    rows = tuple((span.phase.value, span.start_ms, span.end_ms, span.length_ms) for span in phases_of(job))
    return ReportTable("job", f"Phases of job {job.job_id}", PHASE_COLUMNS, rows)


def _marks(job: SlowJob) -> Iterator[tuple[Phase, float]]:
    """Yield the end of each known phase, since the job was enqueued."""
    yield Phase.QUEUED, job.queue_ms
    recorded = (
        (Phase.TOKENIZED, job.tokenized_ms),
        (Phase.ADMITTED, job.admitted_ms),
        (Phase.PREFILL, job.first_token_ms),
        (Phase.DECODE, job.last_token_ms),
        (Phase.COMMITTED, job.committed_ms),
    )
    known = [(phase, job.queue_ms + ms) for phase, ms in recorded if ms is not None]
    yield from known or [(Phase.RUNNING, job.e2e_ms)]
