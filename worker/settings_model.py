"""The settings: every field with its type, default, bounds and description. `worker.settings` fills them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from worker.functions.allow_list import ENTRY_PATTERN
from worker.running.failpoints import parse_faults

REDIS_SCHEMES = ("redis", "rediss", "unix")
DATABASE_SCHEMES = ("sqlite", "postgresql", "postgres", "sqlite+pysqlite", "postgresql+psycopg")
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
QUEUE_RULE = "up to 128 letters, digits, '.', '_' and '-'"
CURRENCY_PATTERN = re.compile(r"\S{1,16}")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?) *(?P<unit>[kmgt]?i?b?)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):)?(?P<port>\d{1,5})", re.ASCII)
LOCALHOST = "127.0.0.1"
MAX_PORT = 65_535
HIDDEN: Any = {"hidden": True}  # of a setting that no help mentions
SERVING: Any = {"serving": True}  # of a setting that is `pagemill serve`'s alone
_UNIT_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(value: object) -> object:
    """Return the bytes of a size such as "2GiB", "500 MB" or 1048576; ValueError when it is none.

    KiB, MiB, GiB, TiB count in 1024, KB, MB, GB, TB in 1000. Anything but text is returned as it is.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError("is not a size; write for example 2GiB, 500MB or a number of bytes")
    unit = match["unit"].lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    return int(float(match["number"]) * base ** _UNIT_EXPONENTS[unit.removesuffix("i")])


class LogFormat(StrEnum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int  # 0 is any that is free

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address of "PORT" (on this machine alone), "HOST:PORT" or "[IPV6]:PORT"; ValueError if it is none."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > MAX_PORT:
        raise ValueError("is not an address; write for example 8080, 0.0.0.0:8080 or [::1]:8080")
    return Address((match["host"] or LOCALHOST).strip("[]"), int(match["port"]))


def _is_address(text: str) -> str:
    parse_address(text)
    return text


def _is_collector(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ValueError("is not the address of a collector; write for example http://localhost:4318")
    if parts.username or parts.password or parts.query:
        raise ValueError("must have no user, password or query; put credentials into OTEL_EXPORTER_OTLP_HEADERS")
    return url


def _split_names(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _is_queue_name(name: str) -> str:
    if not QUEUE_PATTERN.fullmatch(name):
        raise ValueError(f"names are {QUEUE_RULE}")
    return name


def _names_are_unique(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} more than once")
    return names


def _is_power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


def _is_currency(text: str) -> str:
    if not CURRENCY_PATTERN.fullmatch(text) or not text.isprintable():
        raise ValueError("is up to 16 printable characters without blanks, for example USD")
    return text


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _are_faults(text: str) -> str:
    parse_faults(text)
    return text


def _check_scheme(schemes: tuple[str, ...]) -> AfterValidator:
    def check(url: SecretStr) -> SecretStr:
        scheme, separator, _ = url.get_secret_value().partition("://")
        if not separator or scheme not in schemes:
            raise ValueError(f"must begin with one of {', '.join(f'{name}://' for name in schemes)}")
        return url

    return AfterValidator(check)


def _is_function_entry(name: str) -> str:
    if not ENTRY_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is no dotted name such as shop.tasks.invoice, and no module such as shop.tasks.*")
    return name


FunctionEntry = Annotated[str, AfterValidator(_is_function_entry)]
QueueName = Annotated[str, AfterValidator(_is_queue_name)]
ByteSize = Annotated[int, BeforeValidator(parse_size)]


class Settings(BaseModel):
    """All settings, complete at construction. Bounds are part of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    redis_url: Annotated[SecretStr, _check_scheme(REDIS_SCHEMES)] | None = Field(
        default=None, description="Redis or Valkey: redis://, rediss:// or unix://; unset starts an embedded one"
    )
    database_url: Annotated[SecretStr, _check_scheme(DATABASE_SCHEMES)] | None = Field(
        default=None, description="sqlite:/// or postgresql://; unset is pagemill.db in data_dir"
    )
    data_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        default=Path("~/.local/share/pagemill"),
        validate_default=True,
        description="folder of the embedded queue and of SQLite; $XDG_DATA_HOME/pagemill where that is set",
    )
    queues: Annotated[tuple[QueueName, ...], BeforeValidator(_split_names), AfterValidator(_names_are_unique)] = Field(
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
        default="auto", description="type of the weights and of the KV cache"
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
    block_size: Annotated[int, AfterValidator(_is_power_of_two)] = Field(
        default=16, ge=8, le=256, description="KV slots in a block, a power of two"
    )
    kv_memory_bytes: ByteSize | None = Field(
        default=None,
        ge=1,
        description="memory of the KV cache, for example 2GiB; unset takes what the device can spare",
    )
    max_num_seqs: int = Field(default=64, ge=1, le=4096, description="requests in one step")
    token_budget: int | None = Field(
        default=None, ge=16, le=1_048_576, description="tokens computed in one step; unset fits the device"
    )
    max_model_len: int | None = Field(
        default=None, ge=16, le=16_777_216, description="longest prompt plus output, tokens; unset is the model's limit"
    )
    enable_prefix_caching: bool = Field(default=True, description="reuse the KV blocks of equal prefixes")
    functions: Annotated[
        tuple[FunctionEntry, ...], BeforeValidator(_split_names), AfterValidator(_names_are_unique)
    ] = Field(
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
    price_currency: Annotated[str, AfterValidator(_is_currency)] = Field(
        default="USD", description="the currency of that price, as reports are to print it"
    )
    health_address: Annotated[str, AfterValidator(_is_address)] | None = Field(
        default=None,
        description="where a worker serves /healthz, /livez and /metrics: HOST:PORT, or PORT on this machine alone",
    )
    serve_address: Annotated[str, AfterValidator(_is_address)] = Field(
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
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe message that is logged"
    )
    log_format: LogFormat = Field(
        default=LogFormat.TEXT, description="form of the log: text, or json for one object a line"
    )
    trace_endpoint: Annotated[str, AfterValidator(_is_collector)] | None = Field(
        default=None,
        max_length=2048,
        description="OpenTelemetry collector that gets a trace of each job, over OTLP/HTTP: http://localhost:4318",
    )
    trace_sample_ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, allow_inf_nan=False, description="share of the jobs that are traced"
    )
    failpoints: Annotated[str, AfterValidator(_are_faults)] = Field(
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

    def serve_listener(self) -> Address:
        """Return where `pagemill serve` is to listen."""
        return parse_address(self.serve_address)

    def queue_url(self) -> str | None:
        """Return the Redis URL with its password, or None for the embedded queue."""
        return self.redis_url.get_secret_value() if self.redis_url else None

    def sql_url(self) -> str:
        """Return the database URL with its password; SQLite in `data_dir` when none is set."""
        return self.database_url.get_secret_value() if self.database_url else f"sqlite:///{self.data_dir}/pagemill.db"
