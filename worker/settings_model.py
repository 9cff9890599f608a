"""The settings: every field with its type, default, bounds and description. `worker.settings` fills them."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from worker.settings_engine import EngineSettings
from worker.settings_serving import ServingSettings
from worker.settings_types import (
    Address,
    CollectorUrl,
    Currency,
    DatabaseUrl,
    Faults,
    Folder,
    FunctionEntries,
    ListenAddress,
    LogFormat,
    QueueNames,
    RedisUrl,
    parse_address,
)

HIDDEN: Any = {"hidden": True}  # of a setting that no help mentions


class Settings(ServingSettings, EngineSettings):
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

    def queue_url(self) -> str | None:
        """Return the Redis URL with its password, or None for the embedded queue."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    def sql_url(self) -> str:
        """Return the database URL with its password; SQLite in `data_dir` when none is set."""
        return self.database_url.get_secret_value() if self.database_url else f"sqlite:///{self.data_dir}/pagemill.db"
