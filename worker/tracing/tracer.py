"""Where the persister tells of jobs that have ended, for their traces."""

import importlib
from collections.abc import Sequence
from typing import Protocol

from worker.extras import require_extra
from worker.records import DeadRecord, Outcome
from worker.running.held import HeldJobs
from worker.settings_model import Settings
from worker.sql.fleet import WorkerRecord

EXPORTING = "worker.tracing.exporting"  # imported where traces are on: it brings OpenTelemetry


class Tracer(Protocol):
    """Told of outcomes by one thread, of dead records by another. Must not raise, whatever happens, and must wait for
    nobody."""

    def note_commit(self, outcomes: Sequence[Outcome]) -> None:
        """SQL has just taken these outcomes."""

    def note_acknowledged(self, outcomes: Sequence[Outcome]) -> None:
        """Redis has these ends now. The jobs are still held."""

    def note_dead(self, records: Sequence[DeadRecord]) -> None:
        """SQL and Redis have these among the dead."""

    def close(self) -> None:
        """Send what is left, but do not wait long for it."""


class NoTracer:
    """Traces nothing."""

    def note_commit(self, outcomes: Sequence[Outcome]) -> None: ...
    def note_acknowledged(self, outcomes: Sequence[Outcome]) -> None: ...
    def note_dead(self, records: Sequence[DeadRecord]) -> None: ...
    def close(self) -> None: ...


def make_tracer(settings: Settings, record: WorkerRecord, held: HeldJobs) -> Tracer:
    """Return what the settings ask for. Raises ConfigurationError where OpenTelemetry is not installed."""
    if settings.trace_endpoint is None:
        return NoTracer()
    for package in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        require_extra(package, "trace_endpoint", extra="traces")
    tracer: Tracer = importlib.import_module(EXPORTING).exporting_tracer(settings, record, held)
    return tracer
