"""A worker's figures for Prometheus: gauges read from its parts when somebody asks, counters from what they noted.

Asking takes no lock that the engine's thread takes, and waits neither for Redis nor for SQL.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from engine.engine import Engine
from worker.metrics.exposition import counter, expose, gauge, registry_of
from worker.metrics.job_tally import JobTally
from worker.metrics.queue_depths import QueueDepths
from worker.metrics.step_log import StepLog
from worker.running.beats import Beat
from worker.running.health import HealthReport
from worker.running.held import HeldJobs
from worker.sql.fleet import WorkerRecord

NS = 1e9  # nanoseconds in a second


class WorkerMetrics:
    """Answers scrapes, from any thread."""

    def __init__(
        self,
        record: WorkerRecord,
        engine: Engine,
        held: HeldJobs,
        tally: JobTally,
        steps: StepLog,
        depths: QueueDepths,
        beats: Mapping[str, Beat],
        report: Callable[[], HealthReport],
        peak_memory_bytes: Callable[[], int],
    ) -> None:
        """`beats` are by the name of the service that each needs."""
        self._record = record
        self._engine = engine
        self._held = held
        self._tally = tally
        self._steps = steps
        self._depths = depths
        self._beats = beats
        self._report = report
        self._peak_memory_bytes = peak_memory_bytes
        self._registry = registry_of(
            self._identity,
            self._requests,
            self._cache,
            self._offload,
            self._jobs,
            self._services,
            tally.families,
            steps.families,
        )
        ProcessCollector(registry=self._registry)  # memory, CPU time, open files; nothing where there is no /proc

    def expose(self, accept: str | None) -> tuple[bytes, str]:
        """Return all figures as text, and its content type; `accept` is the request's header."""
        return expose(self._registry, accept)

    def _identity(self) -> Iterator[Metric]:
        record = self._record
        info = GaugeMetricFamily(
            "pagemill_build_info",
            "Always 1; the labels say what runs",
            labels=["version", "model_name", "device", "dtype", "worker", "torch_version", "transformers_version"],
        )
        versions = record.pagemill_version, record.torch_version, record.transformers_version
        info.add_metric([versions[0], record.model, record.device, record.dtype, record.name, *versions[1:]], 1)
        yield info

    def _requests(self) -> Iterator[Metric]:
        status = self._engine.status()
        yield gauge("pagemill_num_requests_running", "Requests in the engine's steps", status.num_running)
        yield gauge("pagemill_num_requests_waiting", "Requests that wait for KV blocks", status.num_waiting)
        yield counter("pagemill_num_preemptions", "Requests whose blocks were taken", status.preemptions)
        yield counter("pagemill_generation_tokens", "Output tokens, of unfinished requests too", status.output_tokens)
        yield counter("pagemill_computed_tokens", "Tokens run through the model", status.computed_tokens)
        yield counter("pagemill_engine_steps", "Steps of the engine", status.steps)
        account = self._engine.ledger.account
        drafted = account.drafted_tokens
        yield counter("pagemill_spec_decode_num_draft_tokens", "Tokens proposed by speculation and computed", drafted)
        accepted = drafted - account.rejected_tokens
        yield counter("pagemill_spec_decode_num_accepted_tokens", "Of those, the ones that became output", accepted)
        seconds = CounterMetricFamily(
            "pagemill_engine_seconds", "The engine's time, by what it went to; all of it", labels=["spent_on"]
        )
        seconds.add_metric(["requests"], (account.request_ns - account.wasted_ns) / NS)
        seconds.add_metric(["wasted"], account.wasted_ns / NS)
        seconds.add_metric(["idle"], account.idle_ns / NS)
        seconds.add_metric(["loading"], account.loading_ns / NS)
        seconds.add_metric(["overhead"], account.overhead_ns / NS)
        yield seconds

    def _cache(self) -> Iterator[Metric]:
        status = self._engine.status()
        usage = status.blocks_held / status.num_blocks
        yield gauge("pagemill_kv_cache_usage_perc", "Share of the KV blocks that requests hold; 1 is all", usage)
        blocks = GaugeMetricFamily("pagemill_kv_blocks", "KV blocks by use", labels=["use"])
        blocks.add_metric(["held"], status.blocks_held)
        blocks.add_metric(["cached"], status.blocks_cached)
        blocks.add_metric(["free"], status.num_blocks - status.blocks_held - status.blocks_cached)
        yield blocks
        size = self._record.bytes_per_block
        yield gauge("pagemill_kv_block_bytes", "Bytes of a KV block", size)
        peak = self._peak_memory_bytes()
        yield gauge("pagemill_memory_peak_bytes", "Most memory used: of the device, or on a CPU of the process", peak)

    def _offload(self) -> Iterator[Metric]:
        figures = self._engine.status().offload
        slots = GaugeMetricFamily("pagemill_kv_host_blocks", "KV blocks of the host's memory by use", labels=["use"])
        slots.add_metric(["cached"], figures.num_used)
        slots.add_metric(["free"], figures.num_slots - figures.num_used)
        yield slots
        blocks = CounterMetricFamily(
            "pagemill_kv_offloaded_blocks", "KV blocks copied, out to the host or back", labels=["direction"]
        )
        blocks.add_metric(["out"], figures.blocks_out)
        blocks.add_metric(["back"], figures.blocks_back)
        yield blocks
        seconds = CounterMetricFamily("pagemill_kv_offload_seconds", "Time that such copies took", labels=["direction"])
        seconds.add_metric(["out"], figures.out_seconds)
        seconds.add_metric(["back"], figures.back_seconds)
        yield seconds

    def _jobs(self) -> Iterator[Metric]:
        yield gauge("pagemill_held_jobs", "Jobs claimed and not yet acknowledged", len(self._held))
        waiting = self._held.num_ended
        yield gauge("pagemill_outstanding_commits", "Held jobs with a result that SQL or Redis has not yet", waiting)
        depths = GaugeMetricFamily(
            "pagemill_queue_depth", "Jobs that nobody has claimed; told by one worker", labels=["queue"]
        )
        for queue, depth in self._depths.latest.items():
            depths.add_metric([queue], depth)
        yield depths

    def _services(self) -> Iterator[Metric]:
        report = self._report()
        yield gauge("pagemill_healthy", "1 when /healthz says so", report.healthy)
        age = report.engine_answered_seconds_ago
        yield gauge("pagemill_engine_answered_seconds", "Time since the engine last proved that it works", age)
        up = GaugeMetricFamily("pagemill_service_up", "1 when the service answers the worker", labels=["service"])
        up.add_metric(["redis"], report.redis_answers)
        up.add_metric(["sql"], report.sql_answers)
        yield up
        outages = CounterMetricFamily(
            "pagemill_service_outages", "Times that a service stopped answering the worker", labels=["service"]
        )
        for service, beat in self._beats.items():
            outages.add_metric([service.lower()], beat.num_outages)
        yield outages
        if report.disk_free_bytes is not None:
            yield gauge("pagemill_disk_free_bytes", "Room on the disk of data_dir", report.disk_free_bytes)
