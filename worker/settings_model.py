"""The settings: every field with its type, default, bounds and description. `worker.settings` fills them."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worker.settings_types import (
    Address,
    ByteSize,
    CollectorUrl,
    Currency,
    DatabaseUrl,
    Faults,
    Folder,
    FunctionEntries,
    ListenAddress,
    LogFormat,
    PowerOfTwo,
    QueueName,
    QueueNames,
    RedisUrl,
    parse_address,
)

HIDDEN: Any = {"hidden": True}  # of a setting that no help mentions
SERVING: Any = {"serving": True}  # of a setting that is `pagemill serve`'s alone


class Settings(BaseModel):
    """All settings, complete at construction. Bounds are part of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: RedisUrl | None = Field(
        default=None, description="Redis or Valkey: redis://, rediss:// or unix://; unset starts an embedded one"
    )
    database_url: DatabaseUrl | None = Field(
        default=None, description="sqlite:/// or postgresql://; unset is pagemill.db in data_dir"
    )
    data_dir: Folder = Field(
        default=Path("~/.local/share/pagemill"),
        validate_default=True,
        description="folder of the embedded queue and of SQLite; $XDG_DATA_HOME/pagemill where that is set",
    )
    queues: QueueNames = Field(
        default=("default",), min_length=1, max_length=64, description="queues a worker drains, first ones first"
    )
    lower_queue_share: float = Field(
        default=0.125,
        ge=0.0,
        le=0.5,
        allow_inf_nan=False,
        description="share of the claims that goes to queues behind the first one with jobs; 0 lets them wait",
    )
    model: str | None = Field(
        default=None, min_length=1, max_length=4096, description="a hub id, a local folder or a GGUF file"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="type of the weights, and of the KV cache unless kv_dtype says otherwise"
    )
    weights: Literal["dtype", "int8"] = Field(
        default="dtype",
        description="how weights are held: as dtype, or the linear layers' in int8 (on a CPU; docs/precision.md)",
    )
    batch_invariant: bool = Field(
        default=False,
        description="a request's output is the same to the bit whatever runs beside it; slower (docs/determinism.md)",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto is a GPU where there is one")
    max_jobs: int = Field(
        default=1024,
        ge=1,
        le=4096,
        description="most jobs that a worker holds, results that SQL has not taken yet included; claims follow the "
        "engine's free blocks below that",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0.0, le=3600.0, allow_inf_nan=False, description="time to finish held jobs after SIGTERM"
    )
    block_size: PowerOfTwo = Field(default=16, ge=8, le=256, description="KV slots in a block, a power of two")
    kv_memory_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="memory of the KV cache, for example 2GiB; unset takes what the device can spare",
    )
    kv_dtype: Literal["auto", "int8", "fp8"] = Field(
        default="auto",
        description="type of the KV cache: auto is the weights'; int8 and fp8 take about half the memory of bfloat16",
    )
    kv_offload_bytes: ByteSize = Field(
        default=0,
        ge=0,
        description="memory of the host for KV blocks that the device has no room for; 0 computes them again",
    )
    max_num_seqs: int = Field(default=64, ge=1, le=4096, description="requests in one step")
    token_budget: int | None = Field(
        default=None, ge=16, le=1_048_576, description="tokens computed in one step; unset fits the device"
    )
    max_model_len: int | None = Field(
        default=None, ge=16, le=16_777_216, description="longest prompt plus output, tokens; unset is the model's limit"
    )
    native_kernels: bool = Field(
        default=True, description="on a CPU with bfloat16 units: C kernels, where there is a compiler (cc)"
    )
    cuda_graphs: bool = Field(
        default=True, description="on a GPU: steps that only decode are recorded once and then started with one call"
    )
    async_scheduling: bool = Field(
        default=True, description="on a GPU: each step is planned and launched while the one before it is under way"
    )
    enable_prefix_caching: bool = Field(default=True, description="reuse the KV blocks of equal prefixes")
    speculation: Literal["off", "ngram", "draft"] = Field(
        default="off",
        description="what proposes tokens that one step then checks: ngram, the request's own tokens; draft, a smaller "
        "model; outputs stay the same",
    )
    draft_model: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="a smaller model with the same tokenizer, for speculation draft",
    )
    max_draft_tokens: int = Field(
        default=8, ge=1, le=64, description="most tokens proposed for a request in one step; fewer where that pays more"
    )
    functions: FunctionEntries = Field(
        default=(),
        max_length=256,
        description="plain functions that may run too: dotted names, or module.* for all that it defines",
    )
    function_threads: int = Field(default=4, ge=1, le=256, description="plain functions that run at once")
    lease_seconds: float = Field(
        default=30.0,
        ge=1.0,
        le=3600.0,
        allow_inf_nan=False,
        description="time after which a silent worker's jobs go on",
    )
    beat_seconds: float = Field(
        default=5.0, gt=0.0, le=1200.0, allow_inf_nan=False, description="time between two renewals of the leases"
    )
    sweep_seconds: float = Field(
        default=5.0, gt=0.0, le=3600.0, allow_inf_nan=False, description="time between two searches for lapsed leases"
    )
    retry_base_seconds: float = Field(
        default=1.0, gt=0.0, le=3600.0, allow_inf_nan=False, description="longest back-off before the first retry"
    )
    retry_cap_seconds: float = Field(
        default=300.0,
        gt=0.0,
        le=86_400.0,
        allow_inf_nan=False,
        description="longest back-off before any retry: it doubles with each",
    )
    reconcile_seconds: float = Field(
        default=300.0,
        ge=1.0,
        le=86_400.0,
        allow_inf_nan=False,
        description="time between two searches for jobs that SQL has and Redis lost",
    )
    outbox_seconds: float = Field(
        default=0.5,
        ge=0.01,
        le=3600.0,
        allow_inf_nan=False,
        description="time between two looks into the outbox, where apps put jobs in their own transactions",
    )
    scheduler: bool = Field(
        default=True, description="a worker fires schedules too: `pagemill cron`; of all schedulers one leads"
    )
    record: bool = Field(
        default=True, description="submit writes jobs to SQL before Redis, so that a lost queue can be rebuilt"
    )
    result_ttl_seconds: int = Field(
        default=86_400, ge=1, le=31_536_000, description="time a result stays in Redis; SQL keeps it"
    )
    tidy_seconds: float = Field(
        default=300.0,
        ge=1.0,
        le=86_400.0,
        allow_inf_nan=False,
        description="time between two rounds in which a worker rolls up the hours that are over, and purges",
    )
    retention_days: int | None = Field(
        default=None, ge=1, le=36_500, description="workers delete jobs that ended so long ago; unset keeps them"
    )
    text_retention_days: int | None = Field(
        default=None,
        ge=1,
        le=36_500,
        description="workers delete prompts and outputs of jobs that ended so long ago; unset keeps them",
    )
    schedule_retention_days: int = Field(
        default=365, ge=1, le=36_500, description="workers delete runs of schedules whose slots were so long ago"
    )
    engine_timeout_seconds: float = Field(
        default=60.0,
        ge=1.0,
        le=3600.0,
        allow_inf_nan=False,
        description="time after which an engine that neither steps nor answers is unhealthy",
    )
    price_per_engine_hour: float | None = Field(
        default=None,
        ge=0.0,
        le=1_000_000.0,
        allow_inf_nan=False,
        description="what an hour of this worker costs; its jobs' costs follow from it",
    )
    price_currency: Currency = Field(
        default="USD", description="the currency of that price, as reports are to print it"
    )
    health_address: ListenAddress | None = Field(
        default=None,
        description="where a worker serves /healthz, /livez and /metrics: HOST:PORT, or PORT on this machine alone",
    )
    serve_address: ListenAddress = Field(
        default="8000",
        description="where pagemill serve listens: HOST:PORT, or PORT on this machine alone",
        json_schema_extra=SERVING,
    )
    serve_keys: Literal["auto", "required", "off"] = Field(
        default="auto",
        description="whether requests need an API key; auto: unless only this machine can reach serve_address",
        json_schema_extra=SERVING,
    )
    serve_queue: QueueName = Field(
        default="default", description="queue into which requests go", json_schema_extra=SERVING
    )
    serve_max_requests: int = Field(
        default=256, ge=1, le=10_000, description="requests that are answered at once", json_schema_extra=SERVING
    )
    serve_max_waiting: int = Field(
        default=1_000,
        ge=1,
        le=100_000_000,
        description="jobs waiting in serve_queue above which requests are turned away",
        json_schema_extra=SERVING,
    )
    serve_timeout_seconds: float = Field(
        default=600.0,
        ge=0.1,
        le=86_400.0,
        allow_inf_nan=False,
        description="time for one answer, after which its job fails",
        json_schema_extra=SERVING,
    )
    serve_worker_wait_seconds: float = Field(
        default=10.0,
        ge=0.0,
        le=3600.0,
        allow_inf_nan=False,
        description="time that a request waits for a worker where none is alive",
        json_schema_extra=SERVING,
    )
    serve_max_file_bytes: ByteSize = Field(
        default=200_000_000,
        ge=1,
        le=10_000_000_000,
        description="largest file that is taken, for example 200MB",
        json_schema_extra=SERVING,
    )
    serve_tenant_file_bytes: ByteSize = Field(
        default=10_000_000_000,
        ge=1,
        le=1_000_000_000_000_000,
        description="most bytes of files that a tenant may keep, for example 10GB",
        json_schema_extra=SERVING,
    )
    serve_file_days: int = Field(
        default=30,
        ge=1,
        le=36_500,
        description="time after which a file is deleted, where its sender does not say when",
        json_schema_extra=SERVING,
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe message that is logged"
    )
    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="form of the log: text, or json for one object a line"
    )
    trace_endpoint: CollectorUrl | None = Field(
        default=None,
        max_length=2048,
        description="OpenTelemetry collector that gets a trace of each job, over OTLP/HTTP: http://localhost:4318",
    )
    trace_sample_ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, allow_inf_nan=False, description="share of the jobs that are traced"
    )
    failpoints: Faults = Field(
        default="",
        max_length=4096,
        description="faults on purpose, for tests: point=action, as in worker/running/failpoints.py",
        json_schema_extra=HIDDEN,
    )

    @model_validator(mode="after")
    def _lease_outlasts_beats(self) -> Self:
        if self.lease_seconds < 2 * self.beat_seconds:
            raise ValueError(
                f"lease_seconds {self.lease_seconds:g} must be at least twice beat_seconds {self.beat_seconds:g}"
            )
        return self

    @model_validator(mode="after")
    def _draft_model_drafts(self) -> Self:
        if (self.speculation == "draft") != (self.draft_model is not None):
            told = "not set" if self.draft_model is None else repr(self.draft_model)
            raise ValueError(f"draft_model is {told} and speculation is {self.speculation!r}: one needs the other")
        return self

    @model_validator(mode="after")
    def _back_off_grows(self) -> Self:
        if self.retry_cap_seconds < self.retry_base_seconds:
            raise ValueError(
                f"retry_cap_seconds {self.retry_cap_seconds:g} must be at least "
                f"retry_base_seconds {self.retry_base_seconds:g}"
            )
        return self

    def health_listener(self) -> Address | None:
        """Return where the health endpoint is to listen, if anywhere."""
        return parse_address(self.health_address) if self.health_address else None

    def serve_listener(self) -> Address:
        """Return where `pagemill serve` is to listen."""
        return parse_address(self.serve_address)

    def queue_url(self) -> str | None:
        """Return the Redis URL with its password, or None for the embedded queue."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    def sql_url(self) -> str:
        """Return the database URL with its password; SQLite in `data_dir` when none is set."""
        return self.database_url.get_secret_value() if self.database_url else f"sqlite:///{self.data_dir}/pagemill.db"
