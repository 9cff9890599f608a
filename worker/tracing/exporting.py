"""Traces through OpenTelemetry's SDK to a collector, over OTLP and HTTP."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from worker.log_fields import about
from worker.records import AttemptState, DeadRecord, JobState, Outcome
from worker.running.held import HeldJobs
from worker.settings_model import Settings
from worker.sql.fleet import WorkerRecord
from worker.trace_context import TraceParent, parse_trace_parent, trace_parent
from worker.tracing.phases import JobTrace, trace_of

EXPORT_PATH = "/v1/traces"
EXPORT_TIMEOUT_SECONDS = 5
CLOSE_TIMEOUT_MS = 3000
MS = 1000.0  # milliseconds in a second

logger = logging.getLogger(__name__)


class ExportingTracer:
    """Makes a span of each job that has ended, and child spans of its phases. They are sent by a thread of the SDK's,
    which drops them where the collector cannot keep up."""

    def __init__(
        self, provider: TracerProvider, held: HeldJobs, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("pagemill", metadata.version("pagemill"))
        self._held = held
        self._clock = clock
        self._committed: dict[str, float] = {}  # when, by execution id, of results that await acknowledgement

    def note_commit(self, outcomes: Sequence[Outcome]) -> None:
        now = self._clock()
        self._committed.update((outcome.claim.execution_id, now) for outcome in outcomes)

    def note_acknowledged(self, outcomes: Sequence[Outcome]) -> None:
        now = self._clock()
        for outcome in outcomes:
            execution_id = outcome.claim.execution_id
            job, committed = self._held.get(execution_id), self._committed.get(execution_id)
            if job is None or committed is None:
                continue
            try:
                self._emit(trace_of(outcome, (committed - job.claimed_at) * MS, (now - job.claimed_at) * MS))
            except Exception:  # a trace is never worth a job
                logger.exception("job %s cannot be traced", outcome.claim.job_id, extra=about(outcome.claim))
        # What was committed and is not acknowledged by now has gone back to its queue.
        self._committed.clear()

    def note_dead(self, records: Sequence[DeadRecord]) -> None:
        for record in records:
            try:
                self._emit_dead(record)
            except Exception:  # a trace is never worth a job
                logger.exception("record %s cannot be traced", record.job_id)

    def close(self) -> None:
        with suppress(Exception):
            self._provider.force_flush(CLOSE_TIMEOUT_MS)
        self._provider.shutdown()

    def _emit(self, job: JobTrace) -> None:
        claim = job.outcome.claim
        root = self._tracer.start_span(
            "pagemill.job",
            context=_context(trace_parent(job.outcome.claim)),
            kind=SpanKind.CONSUMER,
            attributes=_attributes(job.outcome),
            start_time=_nanoseconds(job.began_at),
        )
        if root.is_recording():
            context = trace.set_span_in_context(root)
            for phase in job.phases:
                span = self._tracer.start_span(
                    f"pagemill.{phase.name}",
                    context=context,
                    attributes={"pagemill.job_id": claim.job_id},
                    start_time=_nanoseconds(phase.began_at),
                )
                span.end(_nanoseconds(phase.ended_at))
            if job.outcome.state is AttemptState.FAILED:
                root.set_status(Status(StatusCode.ERROR, job.outcome.error_code))
        root.end(_nanoseconds(job.ended_at))

    def _emit_dead(self, record: DeadRecord) -> None:
        parent = None if record.traceparent is None else parse_trace_parent(record.traceparent)
        now = datetime.now(UTC)
        began_at = now if record.enqueued_at is None else min(record.enqueued_at, now)
        root = self._tracer.start_span(
            "pagemill.job",
            context=_context(parent),
            kind=SpanKind.CONSUMER,
            attributes={
                "pagemill.job_id": record.job_id,
                "pagemill.queue": record.queue,
                "pagemill.state": JobState.DEAD.value,
                "error.type": record.error_code,
            },
            start_time=_nanoseconds(began_at),
        )
        root.set_status(Status(StatusCode.ERROR, record.error_code))
        root.end(_nanoseconds(now))


def exporting_tracer(settings: Settings, record: WorkerRecord, held: HeldJobs) -> ExportingTracer:
    """Return a tracer that sends to the collector of the settings."""
    assert settings.trace_endpoint is not None, "traces are on"
    exporter = OTLPSpanExporter(
        settings.trace_endpoint.rstrip("/").removesuffix(EXPORT_PATH) + EXPORT_PATH, timeout=EXPORT_TIMEOUT_SECONDS
    )
    provider = make_provider(record, settings.trace_sample_ratio)
    add_exporter(provider, exporter)
    return ExportingTracer(provider, held)


def make_provider(record: WorkerRecord, sample_ratio: float) -> TracerProvider:
    """Return a provider of a worker's own: OpenTelemetry's global one is left to plain functions."""
    resource = Resource.create(
        {
            "service.name": "pagemill-worker",
            "service.version": record.pagemill_version,
            "service.instance.id": record.name,
            "host.name": record.hostname,
        }
    )
    return TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample_ratio)), resource=resource, shutdown_on_exit=False
    )


def add_exporter(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Send a provider's spans from a thread of the SDK's."""
    provider.add_span_processor(BatchSpanProcessor(exporter))


def _context(parent: TraceParent | None) -> Context:
    """Return the span that the job was submitted in, if its producer named one."""
    if parent is None:
        return trace.set_span_in_context(trace.INVALID_SPAN)
    flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
    span = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(span))


def _attributes(outcome: Outcome) -> dict[str, str | int | float]:
    claim, stats = outcome.claim, outcome.stats
    found = {
        "pagemill.job_id": claim.job_id,
        "pagemill.queue": claim.queue,
        "pagemill.tenant": claim.job.tenant,
        "pagemill.batch_id": claim.job.batch_id,
        "pagemill.epoch": claim.epoch,
        "pagemill.state": outcome.state.value,
        "error.type": outcome.error_code,
        "gen_ai.request.model": claim.job.model,
        "gen_ai.request.max_tokens": claim.job.max_tokens,
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.completion_tokens,
        "pagemill.finish_reason": outcome.finish_reason,
        "pagemill.prefix_hit_tokens": None if stats is None else stats.prefix_hit_tokens,
        "pagemill.preemptions": None if stats is None else stats.preemptions,
    }
    return {name: value for name, value in found.items() if value is not None}


def _nanoseconds(moment: datetime) -> int:
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
