"""Traces: a job's life as spans, within its producer's trace; off they cost no import, and a dead collector no job."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rq import Queue
from rq.serializers import JSONSerializer

from tests.sql.builders import claim_of, dead_of, outcome_of, worker_of
from tests.worker.fakes import ScriptedRunner, make_flow, running
from worker.client import submit
from worker.errors import ConfigurationError
from worker.records import AttemptState, JobState, Outcome
from worker.running.held import HeldJob, HeldJobs
from worker.settings import resolve_settings
from worker.sql.store import JobStore
from worker.trace_context import TraceParent, parse_trace_parent
from worker.tracing import exporting
from worker.tracing.exporting import ExportingTracer, make_provider
from worker.tracing.tracer import NoTracer, make_tracer

ROOT = Path(__file__).resolve().parents[2]
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
PHASES = ["queue", "tokenize", "wait", "prefill", "decode", "commit", "acknowledge"]


@dataclass
class Collector:
    """A collector that keeps what it gets, or answers with an error."""

    url: str = ""
    status: int = 200
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector on a port of this machine."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.status == 200:
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_job_is_a_span_with_its_phases(connection: redis.Redis, sqlite_store: JobStore) -> None:
    with collecting() as collector:
        flow = make_flow(connection, sqlite_store, ScriptedRunner(), trace_endpoint=collector.url)
        with running(flow, burst=True) as worker:
            (job_id,) = submit(connection, [{"prompt": "one", "metadata": {"traceparent": SAMPLED}, "batch_id": "b"}])
            queue = Queue("default", connection=connection, serializer=JSONSerializer)
            by_rq = queue.enqueue("pagemill.prompt", {"prompt": "two"}, meta={"traceparent": SAMPLED, "n": 1})
            worker.wait()
        assert sqlite_store.states([job_id, by_rq.id]) == dict.fromkeys([job_id, by_rq.id], JobState.DONE)
        spans = collector.spans()
    resource = {a.key: a.value.string_value for a in collector.requests[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["service.instance.id"]) == ("pagemill-worker", "worker-1")
    roots = [span for span in spans if span.name == "pagemill.job"]
    assert [root.parent_span_id.hex() for root in roots] == [SPAN, SPAN]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    root = next(root for root in roots if attributes(root)["pagemill.job_id"] == job_id)
    assert attributes(root) == {
        "pagemill.job_id": job_id,
        "pagemill.queue": "default",
        "pagemill.tenant": "default",
        "pagemill.batch_id": "b",
        "pagemill.epoch": attributes(root)["pagemill.epoch"],
        "pagemill.state": "done",
        "pagemill.finish_reason": "stop",
        "pagemill.prefix_hit_tokens": 0,
        "pagemill.preemptions": 0,
        "gen_ai.request.max_tokens": 256,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 6,
    }
    phases = [span for span in spans if span.parent_span_id == root.span_id]
    assert [phase.name for phase in phases] == [f"pagemill.{name}" for name in PHASES]
    ends = [phase.end_time_unix_nano for phase in phases]
    begins = [phase.start_time_unix_nano for phase in phases]
    assert begins == sorted(begins)
    assert ends == sorted(ends)
    assert begins[0] == root.start_time_unix_nano
    assert ends[-1] == root.end_time_unix_nano


def attributes(span: Any) -> dict[str, object]:
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = getattr(attribute.value, kind)
    return found


def test_collector_that_fails_costs_no_job(
    connection: redis.Redis, sqlite_store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "EXPORT_TIMEOUT_SECONDS", 0.2)
    with collecting() as collector:
        collector.status = 500
        for endpoint in (collector.url, "http://127.0.0.1:1"):
            flow = make_flow(connection, sqlite_store, ScriptedRunner(), trace_endpoint=endpoint)
            ids = submit(connection, ["one", "two"])
            with running(flow, burst=True) as worker:
                worker.wait()
            assert sqlite_store.states(ids) == dict.fromkeys(ids, JobState.DONE)
    assert not collector.requests


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def trace(exporter: InMemorySpanExporter, *outcomes: Outcome, ratio: float = 1.0) -> list[ReadableSpan]:
    """Trace jobs that never reached the engine; return the spans of those."""
    held = HeldJobs(100)
    held.add(HeldJob(outcome.claim, 5.0) for outcome in outcomes)
    provider = make_provider(worker_of("w"), ratio)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = ExportingTracer(provider, held, clock=lambda: 8.0)
    tracer.note_commit(outcomes)
    tracer.note_acknowledged(outcomes)
    tracer.close()
    return list(exporter.get_finished_spans())


def test_job_that_failed_before_the_engine_has_only_its_phases(exporter: InMemorySpanExporter) -> None:
    claim = claim_of("a")
    spans = trace(exporter, outcome_of(claim, AttemptState.FAILED, error_code="model_not_served"))
    assert [span.name for span in spans] == [
        "pagemill.queue",
        "pagemill.commit",
        "pagemill.acknowledge",
        "pagemill.job",
    ]
    root = spans[-1]
    assert not root.status.is_ok
    assert root.status.description == "model_not_served"
    assert root.attributes is not None
    assert root.attributes["error.type"] == "model_not_served"
    assert root.start_time is not None
    assert root.end_time is not None
    assert (root.end_time - root.start_time) / 1e9 == pytest.approx(13.0)  # 10 s in the queue, then 3 s here


def test_dead_letters_are_traced(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer=JSONSerializer)
    with collecting() as collector:
        unknown = queue.enqueue("os.system", "ls").id
        flow = make_flow(connection, sqlite_store, ScriptedRunner(), trace_endpoint=collector.url)
        with running(flow, burst=True) as worker:
            worker.wait()
        spans = collector.spans()
    (root,) = spans
    assert attributes(root) == {
        "pagemill.job_id": unknown,
        "pagemill.queue": "default",
        "pagemill.state": "dead",
        "error.type": "wrong_function",
    }
    assert root.status.message == "wrong_function"
    assert root.start_time_unix_nano <= root.end_time_unix_nano


def test_dead_job_is_in_its_producers_trace(exporter: InMemorySpanExporter) -> None:
    provider = make_provider(worker_of("w"), 1.0)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = ExportingTracer(provider, HeldJobs(1))
    tracer.note_dead([dead_of("a", traceparent=SAMPLED), dead_of("b", traceparent="nonsense"), dead_of("c")])
    tracer.close()
    parents = [span.parent and f"{span.parent.span_id:016x}" for span in exporter.get_finished_spans()]
    assert parents == [SPAN, None, None]


def test_cancelled_job_has_its_state(exporter: InMemorySpanExporter) -> None:
    root = trace(exporter, outcome_of(claim_of("a"), AttemptState.CANCELLED))[-1]
    assert root.attributes is not None
    assert (root.attributes["pagemill.state"], root.status.is_ok) == ("cancelled", True)


@pytest.mark.parametrize(
    ("traceparent", "ratio", "is_traced"),
    [(SAMPLED, 0.0, True), (UNSAMPLED, 1.0, False), (None, 0.0, False), (None, 1.0, True), ("nonsense", 1.0, True)],
)
def test_producer_decides_what_is_sampled_and_the_ratio_the_rest(
    exporter: InMemorySpanExporter, traceparent: str | None, ratio: float, is_traced: bool
) -> None:
    metadata = {} if traceparent is None else {"traceparent": traceparent}
    assert bool(trace(exporter, outcome_of(claim_of("a", metadata=metadata)), ratio=ratio)) is is_traced


def test_ratio_is_of_jobs(exporter: InMemorySpanExporter) -> None:
    spans = trace(exporter, *(outcome_of(claim_of(f"job-{number}")) for number in range(100)), ratio=0.5)
    num_traced = sum(span.name == "pagemill.job" for span in spans)
    assert 10 < num_traced < 90  # six and more standard deviations from fifty
    assert len(spans) == 4 * num_traced


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        (SAMPLED, TraceParent(TRACE, SPAN, is_sampled=True)),
        (UNSAMPLED, TraceParent(TRACE, SPAN, is_sampled=False)),
        (f"cc-{TRACE}-{SPAN}-01-what a later version adds", TraceParent(TRACE, SPAN, is_sampled=True)),
        (f"{SAMPLED}-more", None),
        (f"cc-{TRACE}-{SPAN}-01more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (SAMPLED.upper(), None),
        (f" {SAMPLED}", None),
        (f"{SAMPLED}\n", None),
        ("", None),
    ],
)
def test_traceparent_is_read_as_the_standard_says(text: str, parsed: TraceParent | None) -> None:
    assert parse_trace_parent(text) == parsed


def test_odd_meta_of_rq_is_no_fault(connection: redis.Redis, sqlite_store: JobStore) -> None:
    queue = Queue("default", connection=connection, serializer=JSONSerializer)
    metas: list[Any] = [{"traceparent": 7}, {"traceparent": "x" * 100_000}, {"other": ["traceparent"]}]
    ids = [queue.enqueue("pagemill.prompt", {"prompt": "a"}, meta=meta).id for meta in metas]
    connection.hset(f"rq:job:{ids[0]}", "meta", b"\x80\x04traceparent")
    with running(make_flow(connection, sqlite_store, ScriptedRunner()), burst=True) as worker:
        worker.wait()
    assert sqlite_store.states(ids) == dict.fromkeys(ids, JobState.DONE)


def test_traces_that_are_off_import_nothing() -> None:
    code = "import sys, worker.running.flow; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "worker.tracing.tracer" in imported
    ours = ("worker.tracing.exporting", "opentelemetry.sdk.trace", "opentelemetry.exporter")  # redis-py imports others
    assert not {name for name in ours if name in imported}
    assert isinstance(make_tracer(resolve_settings(environ={}).settings, worker_of("w"), HeldJobs(1)), NoTracer)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("localhost:4318", "is not the address of a collector"),
        ("ftp://host", "is not the address of a collector"),
        ("http://", "is not the address of a collector"),
        ("http://host:99999", "is not the address of a collector"),
        ("http://me:secret@host", "must have no user, password or query"),
    ],
)
def test_endpoint_that_is_none_is_refused(value: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^trace_endpoint: {complaint}") as refused:
        resolve_settings(environ={"PAGEMILL_TRACE_ENDPOINT": value})
    assert "secret" not in str(refused.value)
