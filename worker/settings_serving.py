"""The settings of `pagemill serve`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from worker.settings_types import Address, ByteSize, ListenAddress, QueueName, parse_address

SERVING: Any = {"serving": True}  # of a setting that is `pagemill serve`'s alone


class ServingSettings(BaseModel):
    """How requests over HTTP are taken. Bounds are part of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    def serve_listener(self) -> Address:
        """Return where `pagemill serve` is to listen."""
        return parse_address(self.serve_address)
