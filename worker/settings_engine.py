"""The settings of an engine: its model, types, sizes, and what it does ahead of time."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from worker.settings_types import ByteSize, PowerOfTwo


class EngineSettings(BaseModel):
    """What a worker's engine is to be. Bounds are part of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    max_num_seqs: int = Field(default=128, ge=1, le=4096, description="requests in one step")
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

    @model_validator(mode="after")
    def _draft_model_drafts(self) -> Self:
        if (self.speculation == "draft") != (self.draft_model is not None):
            told = "not set" if self.draft_model is None else repr(self.draft_model)
            raise ValueError(f"draft_model is {told} and speculation is {self.speculation!r}: one needs the other")
        return self
